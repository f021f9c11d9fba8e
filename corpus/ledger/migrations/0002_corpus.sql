-- What selection says of a drop beside its reason, what token shares were planned to bring, and where a prompt is
-- from in its own row: prompt_sources, which said it once more, is a view.
ALTER TABLE drops ADD COLUMN similarity DOUBLE;
ALTER TABLE drops ADD COLUMN eval_set VARCHAR;
ALTER TABLE drops ADD COLUMN eval_item VARCHAR;
ALTER TABLE drops ADD COLUMN overlap VARCHAR;
ALTER TABLE drops ADD COLUMN upstream_id VARCHAR;
COMMENT ON TABLE drops IS 'Rows left out of the candidates: with the prompt that they duplicate and how like it they are (Jaccard), or the evaluation item that they overlap and the words that they share';
ALTER TABLE build_targets ADD COLUMN response_tokens BIGINT;
ALTER TABLE prompts ADD COLUMN pool_id VARCHAR;
ALTER TABLE prompts ADD COLUMN chunk INTEGER;
ALTER TABLE prompts ADD COLUMN file VARCHAR;
ALTER TABLE prompts ADD COLUMN row_index BIGINT;
ALTER TABLE prompts ADD COLUMN upstream_id VARCHAR;
UPDATE prompts SET pool_id = s.pool_id, chunk = s.chunk, file = s.file, row_index = s.row_index,
                   upstream_id = s.upstream_id
FROM prompt_sources s
WHERE s.kept AND s.candidates_id = prompts.candidates_id AND s.prompt_id = prompts.prompt_id;
DROP TABLE prompt_sources;
ALTER TABLE pools ADD COLUMN rows_unread BIGINT;
COMMENT ON TABLE pools IS 'What was read from one source: its rows after where and limit; rows_unread are those that limit or the depth left, NULL where nobody knows';
