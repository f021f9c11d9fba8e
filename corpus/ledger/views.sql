-- The public contract: these columns stay, more may follow. Made again at every start of the writer.
CREATE OR REPLACE VIEW accepted_responses AS
SELECT * FROM responses WHERE state = 'accepted';
COMMENT ON VIEW accepted_responses IS 'Accepted answers, one row per response_id';

CREATE OR REPLACE VIEW latest_build AS
SELECT build_id, name, candidates_id, total, selected, held_out, created_at FROM builds
QUALIFY row_number() OVER (ORDER BY created_at DESC, build_id) = 1;
COMMENT ON VIEW latest_build IS 'The build that was made last; join it USING (build_id) to ask of that one alone';

CREATE OR REPLACE VIEW composition AS
WITH trained AS (
    SELECT d.build_id, r.response_id FROM drafters d JOIN drafter_responses r USING (drafter_id)
    WHERE d.build_id IS NOT NULL GROUP BY ALL
), captured AS (
    SELECT response_id FROM hidden_rows GROUP BY response_id
), stages AS (
    SELECT build_id, 'target' AS stage, category, NULL AS source, rows, rows AS prompts, NULL AS prompt_tokens,
           response_tokens
    FROM build_targets
    UNION ALL
    SELECT s.build_id, 'selected', s.category, s.source, count(*), count(*), sum(p.prompt_tokens), NULL
    FROM selections s JOIN builds b USING (build_id)
    JOIN prompts p ON p.candidates_id = b.candidates_id AND p.prompt_id = s.prompt_id
    WHERE NOT s.holdout GROUP BY ALL
    UNION ALL
    SELECT b.build_id, 'generated', b.category, b.source, count(DISTINCT b.response_id), count(DISTINCT (b.prompt_id, b.replica)), sum(r.prompt_tokens), sum(r.response_tokens)
    FROM build_responses b JOIN responses r USING (response_id) WHERE NOT b.holdout AND r.response_tokens > 0 GROUP BY ALL
    UNION ALL
    SELECT b.build_id, 'accepted', b.category, b.source, count(*), count(DISTINCT (b.prompt_id, b.replica)), sum(r.prompt_tokens), sum(r.response_tokens)
    FROM build_responses b JOIN accepted_responses r USING (response_id) WHERE NOT b.holdout AND b.left_out IS NULL GROUP BY ALL
    UNION ALL
    SELECT b.build_id, 'captured', b.category, b.source, count(*), count(DISTINCT (b.prompt_id, b.replica)), sum(r.prompt_tokens), sum(r.response_tokens)
    FROM build_responses b JOIN accepted_responses r USING (response_id) JOIN captured USING (response_id)
    WHERE NOT b.holdout AND b.left_out IS NULL GROUP BY ALL
    UNION ALL
    SELECT b.build_id, 'trained', b.category, b.source, count(*), count(DISTINCT (b.prompt_id, b.replica)), sum(r.prompt_tokens), sum(r.response_tokens)
    FROM build_responses b JOIN accepted_responses r USING (response_id)
    JOIN trained t ON t.build_id = b.build_id AND t.response_id = b.response_id
    WHERE NOT b.holdout GROUP BY ALL
)
SELECT build_id, stage, category, source, rows::BIGINT AS rows, prompt_tokens::BIGINT AS prompt_tokens,
       response_tokens::BIGINT AS response_tokens,
       rows / sum(rows) OVER (PARTITION BY build_id, stage) AS share_rows,
       response_tokens / sum(response_tokens) OVER (PARTITION BY build_id, stage) AS share_tokens,
       prompts::BIGINT AS prompts, prompts / sum(prompts) OVER (PARTITION BY build_id, stage) AS share_prompts,
       s.license
FROM stages LEFT JOIN sources s USING (build_id, source);
COMMENT ON VIEW composition IS 'What a build is made of at each stage (target, selected, generated, accepted, captured, trained), in rows (one a turn), tokens and prompts; shares are parts of one stage. Target and selected count prompts, target has no source, and the holdout is left out; a prompt that is sampled twice counts twice';

CREATE OR REPLACE VIEW funnel AS
WITH origin AS (
    SELECT s.build_id, s.source, s.pool_id, s.chunks, b.candidates_id
    FROM sources s JOIN builds b USING (build_id)
), candidates AS (
    SELECT o.build_id, o.source, p.prompt_id FROM origin o
    JOIN prompts p ON p.candidates_id = o.candidates_id AND p.source = o.source
)
SELECT o.build_id, o.source, 'read' AS reason, count(*)::BIGINT AS rows
FROM origin o JOIN source_rows r ON r.pool_id = o.pool_id AND r.chunk < o.chunks GROUP BY ALL
UNION ALL
SELECT o.build_id, o.source, r.reason, count(*)::BIGINT
FROM origin o JOIN source_rows r ON r.pool_id = o.pool_id AND r.chunk < o.chunks
WHERE r.reason IS NOT NULL GROUP BY ALL
UNION ALL
SELECT o.build_id, o.source, d.reason, count(*)::BIGINT
FROM origin o JOIN drops d ON d.candidates_id = o.candidates_id AND d.source = o.source GROUP BY ALL
UNION ALL
SELECT c.build_id, c.source,
       CASE WHEN s.prompt_id IS NULL THEN 'not_needed' WHEN s.holdout THEN 'held_out' ELSE 'selected' END,
       count(*)::BIGINT
FROM candidates c
LEFT JOIN (SELECT DISTINCT build_id, prompt_id, holdout FROM selections) s
  ON s.build_id = c.build_id AND s.prompt_id = c.prompt_id
GROUP BY ALL;
COMMENT ON VIEW funnel IS 'Rows of a source by what became of them; read is the sum of all others';

CREATE OR REPLACE VIEW prompt_sources AS
SELECT candidates_id, prompt_id, source, pool_id, chunk, file, row_index, upstream_id, true AS kept FROM prompts
UNION ALL
SELECT d.candidates_id, d.prompt_id, d.source, d.pool_id, d.chunk, d.file, d.row_index, d.upstream_id, false
FROM drops d SEMI JOIN prompts p ON p.candidates_id = d.candidates_id AND p.prompt_id = d.prompt_id;
COMMENT ON VIEW prompt_sources IS 'Every source row that holds a candidate prompt; kept marks the one that it is labelled by';

CREATE OR REPLACE VIEW provenance AS
WITH best AS (
    SELECT * FROM responses
    QUALIFY row_number() OVER (PARTITION BY response_id ORDER BY state = 'accepted' DESC, shard DESC, shard_row DESC) = 1
), kept AS (
    SELECT candidates_id, prompt_id, source, pool_id, file, row_index, upstream_id FROM prompts
), hidden AS (
    SELECT response_id, capture_id, shard, shard_row FROM hidden_rows
    QUALIFY row_number() OVER (PARTITION BY response_id ORDER BY capture_id, shard, shard_row) = 1
)
SELECT br.build_id, br.response_id, br.prompt_id, br.replica, br.turn, br.category, br.source,
       p.dataset, p.revision, p.config, p.split,
       CASE WHEN a.import_id = br.build_id THEN a.row_index ELSE k.row_index END AS row_index,
       CASE WHEN a.import_id = br.build_id THEN a.upstream_id ELSE k.upstream_id END AS upstream_id, coalesce(s.license, p.license) AS license,
       br.recipe_id, rc.model, rc.thinking, CASE WHEN r.state = 'accepted' AND br.left_out IS NOT NULL THEN 'left_out' ELSE coalesce(r.state, 'unfinished') END AS state,
       coalesce(br.left_out, r.reason) AS reason, r.finish_reason,
       r.prompt_tokens, r.response_tokens, r.seed, r.attempt, r.engine, r.device, r.started_at, r.ended_at,
       r.shard, r.shard_row, h.shard AS hidden_shard, h.shard_row AS hidden_row,
       CASE WHEN a.import_id = br.build_id THEN a.file ELSE k.file END AS file, br.holdout, h.capture_id,
       i.name AS imported_from, a.file AS imported_file, a.row_index AS imported_row,
       r.notes, r.reasoning_tokens, r.stop_reason, r.first_token_at, r.queued_at
FROM build_responses br
JOIN builds b USING (build_id)
LEFT JOIN kept k ON k.candidates_id = b.candidates_id AND k.prompt_id = br.prompt_id
LEFT JOIN sources s ON s.build_id = br.build_id AND s.source = br.source
LEFT JOIN pools p ON p.pool_id = k.pool_id
LEFT JOIN recipes rc ON rc.recipe_id = br.recipe_id
LEFT JOIN best r ON r.response_id = br.response_id
LEFT JOIN hidden h ON h.response_id = br.response_id
LEFT JOIN imported_answers a ON a.response_id = br.response_id
LEFT JOIN imports i ON i.import_id = a.import_id;
COMMENT ON VIEW provenance IS 'One row per build and response: from the source row (row_index is 0-based in its file) to hidden/<capture_id>/<hidden_shard>; imported_* say which row of which imported corpus an answer was taken from';

CREATE OR REPLACE VIEW unfinished AS
SELECT br.build_id, br.prompt_id, br.replica, br.turn, br.category,
       coalesce(br.left_out, max_by(r.reason, (r.shard, r.shard_row)), 'not answered yet') AS why
FROM build_responses br
LEFT JOIN responses r USING (response_id)
GROUP BY br.build_id, br.prompt_id, br.replica, br.turn, br.category, br.response_id, br.left_out
HAVING br.left_out IS NOT NULL OR count(*) FILTER (r.state = 'accepted') = 0;
COMMENT ON VIEW unfinished IS 'Answers that a build wants and does not have, and why';

CREATE OR REPLACE VIEW throughput AS
SELECT run_id, engine, device, sampled_at, running, waiting, tokens_per_s, kv_use, prefix_hits FROM engine_samples;
COMMENT ON VIEW throughput IS 'Samples of each engine over a run, every few seconds; device is what responses.device says';

CREATE OR REPLACE VIEW acceptance_by_category AS
WITH newest AS (
    SELECT * FROM acceptance
    QUALIFY row_number() OVER (PARTITION BY drafter_id, build_id, category, measured_by ORDER BY measured_at DESC) = 1
), squared AS (  -- corpus/acceptance.py has the formula and its source
    SELECT *, accepted_tokens / nullif(drafts, 0) AS ratio, CASE WHEN rows >= 2 THEN rows - 1 END AS degrees,
           sum_accepted_sq - 2 * ratio * sum_cross + ratio ^ 2 * sum_drafts_sq AS squares
    FROM newest
), halved AS (
    SELECT *, (1.959964e0 + 2.372271e0 / degrees + 2.822501e0 / degrees ^ 2 + 2.555850e0 / degrees ^ 3)
              * sqrt(rows / degrees * CASE WHEN squares > 0 THEN squares WHEN squares <= 0 THEN 0 END) / drafts AS half
    FROM squared
)
SELECT drafter_id, build_id, category, measured_by, 1 + ratio AS acceptance_length,
       drafts, accepted_tokens, rows, measured_at,
       CASE WHEN half < ratio THEN 1 + ratio - half WHEN half >= ratio THEN 1 END AS low, 1 + ratio + half AS high
FROM halved;
COMMENT ON VIEW acceptance_by_category IS 'Tokens per target step on held-out rows, bonus token included; the newest measurement. low and high bound its 95% interval, rows taken for the independent draws (NULL with fewer than 2 rows, or where only totals were counted). measured_by: vllm (its own counters), walk (the sequential walk, as serving steps), anchors (the mean over all positions, another number), ddtree_8, ddtree_16, ddtree_32 (the walk with a tree of that many drafted nodes)';
