-- Corpora that somebody else's pipeline had the target answer, and the source row of each of their answers.
CREATE TABLE imports (
    import_id VARCHAR PRIMARY KEY, name VARCHAR, model VARCHAR, revision VARCHAR, tokenizer VARCHAR, template VARCHAR,
    rows BIGINT, prompts BIGINT, answers BIGINT, accepted BIGINT, created_at TIMESTAMPTZ
);
COMMENT ON TABLE imports IS 'Imported corpora: import_id is their build_id, candidates_id and recipe_id; tokenizer and template are digests, NULL where the answers have no token ids';
CREATE TABLE imported_answers (
    import_id VARCHAR, response_id VARCHAR, file VARCHAR, row_index BIGINT, upstream_id VARCHAR
);
COMMENT ON TABLE imported_answers IS 'The row of the imported corpus that each of its answers comes from';
