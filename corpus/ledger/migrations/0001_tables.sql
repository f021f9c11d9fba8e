-- Everything that one chain writes. Texts stay in parquet; the ledger holds ids, labels, counts and times.
CREATE TABLE pools (
    pool_id VARCHAR PRIMARY KEY, dataset VARCHAR, config VARCHAR, split VARCHAR, revision VARCHAR,
    format VARCHAR, where_sql VARCHAR, row_limit BIGINT, license VARCHAR, trust_remote_code BOOLEAN, chunks INTEGER,
    rows_read BIGINT, rows_left_out BIGINT, complete BOOLEAN
);
COMMENT ON TABLE pools IS 'What was read from one source: its rows after where and limit';
CREATE TABLE sources (
    build_id VARCHAR, source VARCHAR, pool_id VARCHAR, chunks INTEGER, weight DOUBLE, priority INTEGER,
    license VARCHAR, category_rule VARCHAR, PRIMARY KEY (build_id, source)
);
COMMENT ON TABLE sources IS 'The sources of a build and the pool that each was read into';
CREATE TABLE source_rows (
    pool_id VARCHAR, chunk INTEGER, file VARCHAR, row_index BIGINT, upstream_id VARCHAR,
    upstream_label VARCHAR, prompt_id VARCHAR, reason VARCHAR, detail VARCHAR
);
COMMENT ON TABLE source_rows IS 'Every row read: its prompt, or the reason why it holds none';
CREATE TABLE drops (
    candidates_id VARCHAR, source VARCHAR, pool_id VARCHAR, chunk INTEGER, file VARCHAR, row_index BIGINT,
    prompt_id VARCHAR, reason VARCHAR, detail VARCHAR, winner_prompt_id VARCHAR, winner_source VARCHAR
);
COMMENT ON TABLE drops IS 'Rows left out of the candidates, with the prompt that they duplicate';
CREATE TABLE prompts (
    candidates_id VARCHAR, prompt_id VARCHAR, source VARCHAR, category VARCHAR, holdout BOOLEAN,
    source_rank BIGINT, turns INTEGER, prompt_chars BIGINT, prompt_tokens BIGINT
);
COMMENT ON TABLE prompts IS 'The nested order: within source, category and holdout a quota takes the first ranks';
CREATE TABLE prompt_sources (
    candidates_id VARCHAR, prompt_id VARCHAR, source VARCHAR, pool_id VARCHAR, chunk INTEGER, file VARCHAR,
    row_index BIGINT, upstream_id VARCHAR, kept BOOLEAN
);
COMMENT ON TABLE prompt_sources IS 'Every source row that holds a candidate prompt; kept marks the one that it is labelled by';
CREATE TABLE builds (
    build_id VARCHAR PRIMARY KEY, candidates_id VARCHAR, name VARCHAR, seed BIGINT, unit VARCHAR, total BIGINT,
    selected BIGINT, held_out BIGINT, shortage VARCHAR, tolerance DOUBLE, created_at TIMESTAMPTZ
);
COMMENT ON TABLE builds IS 'A mix over candidates: which prompts are asked';
CREATE TABLE build_targets (build_id VARCHAR, category VARCHAR, share DOUBLE, rows BIGINT);
COMMENT ON TABLE build_targets IS 'Declared shares, normalised, and the rows that they are';
CREATE TABLE selections (
    build_id VARCHAR, prompt_id VARCHAR, replica INTEGER, category VARCHAR, source VARCHAR, holdout BOOLEAN,
    round INTEGER
);
COMMENT ON TABLE selections IS 'The prompts of a build';
CREATE TABLE recipes (
    recipe_id VARCHAR PRIMARY KEY, model VARCHAR, revision VARCHAR, dtype VARCHAR, thinking BOOLEAN,
    temperature DOUBLE, max_tokens BIGINT, body VARCHAR
);
COMMENT ON TABLE recipes IS 'How an answer is made: everything that changes its distribution';
CREATE TABLE responses (
    response_id VARCHAR, prompt_id VARCHAR, recipe_id VARCHAR, replica INTEGER, turn INTEGER, attempt INTEGER,
    state VARCHAR, reason VARCHAR, finish_reason VARCHAR, stop_reason VARCHAR, prompt_tokens BIGINT,
    response_tokens BIGINT, seed BIGINT, engine VARCHAR, device VARCHAR, queued_at TIMESTAMPTZ,
    started_at TIMESTAMPTZ, first_token_at TIMESTAMPTZ, ended_at TIMESTAMPTZ, run_id VARCHAR, shard VARCHAR,
    shard_row BIGINT
);
COMMENT ON TABLE responses IS 'Every attempt, accepted or rejected, and where its tokens lie';
CREATE TABLE build_responses (
    build_id VARCHAR, response_id VARCHAR, prompt_id VARCHAR, recipe_id VARCHAR, replica INTEGER, turn INTEGER,
    category VARCHAR, source VARCHAR, holdout BOOLEAN
);
COMMENT ON TABLE build_responses IS 'The answers that a build wants, made or not';
CREATE TABLE response_shards (
    shard VARCHAR PRIMARY KEY, rows BIGINT, size_bytes BIGINT, sha256 VARCHAR
);
COMMENT ON TABLE response_shards IS 'Files of responses/';
CREATE TABLE captures (
    capture_id VARCHAR PRIMARY KEY, model VARCHAR, revision VARCHAR, layer_ids INTEGER[], final_state VARCHAR,
    dtype VARCHAR, hidden_size INTEGER
);
COMMENT ON TABLE captures IS 'Which states of which target; layer_ids are 0-based layer outputs';
CREATE TABLE hidden_shards (
    capture_id VARCHAR, shard VARCHAR, rows BIGINT, tokens BIGINT, size_bytes BIGINT, sha256 VARCHAR,
    PRIMARY KEY (capture_id, shard)
);
COMMENT ON TABLE hidden_shards IS 'Files of hidden/';
CREATE TABLE hidden_rows (capture_id VARCHAR, response_id VARCHAR, shard VARCHAR, shard_row BIGINT, tokens BIGINT);
COMMENT ON TABLE hidden_rows IS 'Where the states of a response lie';
CREATE TABLE drafters (
    drafter_id VARCHAR PRIMARY KEY, build_id VARCHAR, capture_id VARCHAR, algorithm VARCHAR, steps BIGINT,
    training VARCHAR, path VARCHAR, rows BIGINT, created_at TIMESTAMPTZ
);
COMMENT ON TABLE drafters IS 'Trained drafters, and those of others that were measured';
CREATE TABLE drafter_responses (drafter_id VARCHAR, response_id VARCHAR);
COMMENT ON TABLE drafter_responses IS 'The rows that a drafter was trained on';
CREATE TABLE train_metrics (
    drafter_id VARCHAR, step BIGINT, epoch BIGINT, metric VARCHAR, category VARCHAR, value DOUBLE
);
COMMENT ON TABLE train_metrics IS 'What training measured, long form';
CREATE TABLE acceptance (
    drafter_id VARCHAR, build_id VARCHAR, category VARCHAR, measured_by VARCHAR, drafts BIGINT,
    accepted_tokens BIGINT, rows BIGINT, measured_at TIMESTAMPTZ
);
COMMENT ON TABLE acceptance IS 'Accepted tokens and drafts on held-out rows; acceptance length is 1 + accepted / drafts';
CREATE TABLE engine_samples (
    run_id VARCHAR, engine VARCHAR, device VARCHAR, sampled_at TIMESTAMPTZ, running BIGINT, waiting BIGINT,
    tokens_per_s DOUBLE, kv_use DOUBLE
);
COMMENT ON TABLE engine_samples IS 'How busy each engine was';
CREATE TABLE runs (
    run_id VARCHAR PRIMARY KEY, command VARCHAR, build_id VARCHAR, started_at TIMESTAMPTZ, ended_at TIMESTAMPTZ,
    outcome VARCHAR
);
COMMENT ON TABLE runs IS 'One execution of a stage';
CREATE TABLE events (run_id VARCHAR, happened_at TIMESTAMPTZ, kind VARCHAR, message VARCHAR);
COMMENT ON TABLE events IS 'What happened in a run, apart from its rows';
