-- Sums over held-out rows, which an acceptance length's interval is made of; vLLM's counters have none.
ALTER TABLE acceptance ADD COLUMN sum_drafts_sq BIGINT;
ALTER TABLE acceptance ADD COLUMN sum_accepted_sq BIGINT;
ALTER TABLE acceptance ADD COLUMN sum_cross BIGINT;
COMMENT ON TABLE acceptance IS 'Accepted tokens and drafts on held-out rows; acceptance length is 1 + accepted / drafts. sum_drafts_sq, sum_accepted_sq and sum_cross are sums over rows of drafts^2, accepted^2 and drafts * accepted, NULL where only totals were counted';
