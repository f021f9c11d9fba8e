-- What composition comes to, counted when a run ends: counting it anew joins every answer of every build.
CREATE TABLE kept_composition (
    build_id VARCHAR, stage VARCHAR, category VARCHAR, source VARCHAR, rows BIGINT, prompts BIGINT,
    prompt_tokens BIGINT, response_tokens BIGINT
);
COMMENT ON TABLE kept_composition IS 'What the view composition counts, kept from the end of the last run; the view takes it only while kept_fingerprint says that nothing was entered since';
CREATE TABLE kept_fingerprint (counts BIGINT[]);
COMMENT ON TABLE kept_fingerprint IS 'The view fingerprint as it was when kept_composition was counted; no row if nothing is kept';
