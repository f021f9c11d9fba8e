-- Rows whose states no worker could capture.
CREATE TABLE hidden_failures (capture_id VARCHAR, response_id VARCHAR, tokens BIGINT, reason VARCHAR, device VARCHAR);
COMMENT ON TABLE hidden_failures IS 'Answers without states, and why; extract --retry-set-aside tries them again';
COMMENT ON TABLE build_responses IS 'The answers that a build wants, made or not; left_out says why it takes one not, accepted by now or not, as its last plan has it';
