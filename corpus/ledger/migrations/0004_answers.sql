-- What was noticed of an answer, and what a build leaves out of those that are accepted.
ALTER TABLE responses ADD COLUMN notes VARCHAR[];
ALTER TABLE responses ADD COLUMN reasoning_tokens BIGINT;
ALTER TABLE responses ADD COLUMN extends_turn INTEGER;
COMMENT ON TABLE responses IS 'Every attempt, accepted or rejected, and where its tokens lie; notes are findings (generation.reject says which of them reject), extends_turn is the earlier turn whose tokens, prompt and answer, this one''s prompt begins with';
ALTER TABLE build_responses ADD COLUMN left_out VARCHAR;
COMMENT ON TABLE build_responses IS 'The answers that a build wants, made or not; left_out says why it takes an accepted one not: its manifest is stricter than the one that it was made under';
ALTER TABLE engine_samples ADD COLUMN prefix_hits DOUBLE;
COMMENT ON TABLE engine_samples IS 'How busy each engine was; prefix_hits is the part of the prompt tokens that its prefix cache had';
