-- The public contract: these columns stay, more may follow. Made again at every start of the writer.
-- A condition on an id must reach the scans, and one join a table is enough: benchmarks/looking.py measures a million rows.
CREATE OR REPLACE VIEW accepted_responses AS
SELECT * FROM responses WHERE state = 'accepted';
COMMENT ON VIEW accepted_responses IS 'Accepted answers, one row per response_id';

CREATE OR REPLACE VIEW latest_build AS
SELECT build_id, name, candidates_id, total, selected, held_out, created_at FROM builds
QUALIFY row_number() OVER (ORDER BY build_id IN (SELECT import_id FROM imports), created_at DESC, build_id) = 1;
COMMENT ON VIEW latest_build IS 'The build that was made last; join it USING (build_id) to ask of that one alone. An import is it only where no build was made; name one as build_id (imports lists them)';
COMMENT ON COLUMN latest_build.total IS 'Prompts that the mix asks for';
COMMENT ON COLUMN latest_build.held_out IS 'Prompts of the holdout';

CREATE OR REPLACE VIEW fingerprint AS
SELECT [
    (SELECT count(*) FROM builds), (SELECT count(*) FROM build_targets), (SELECT count(*) FROM selections),
    (SELECT count(*) FILTER (holdout) FROM selections), (SELECT count(*) FROM prompts),
    (SELECT sum(prompt_tokens) FROM prompts), (SELECT count(*) FROM build_responses),
    (SELECT count(left_out) FROM build_responses), (SELECT count(*) FILTER (holdout) FROM build_responses),
    (SELECT count(*) FROM responses), (SELECT count(*) FILTER (state = 'accepted') FROM responses),
    (SELECT sum(prompt_tokens) FROM responses), (SELECT sum(response_tokens) FROM responses),
    (SELECT count(*) FROM hidden_rows), (SELECT count(*) FROM drafters), (SELECT count(*) FROM drafter_responses)
]::BIGINT[] AS counts;
COMMENT ON VIEW fingerprint IS 'Rows and sums of every table that composition counts: as long as they stay, what is kept of it holds';

CREATE OR REPLACE VIEW counted_composition AS
WITH stale AS MATERIALIZED (
    SELECT 1 FROM fingerprint WHERE counts IS DISTINCT FROM (SELECT max(counts) FROM kept_fingerprint)
), made AS (  -- of one response: its accepted attempts, and the others with tokens as one
    SELECT response_id, true AS accepted, coalesce(response_tokens > 0, false) AS counted,
           coalesce(response_tokens > 0, false) AS generated, prompt_tokens, response_tokens
    FROM responses, stale WHERE state = 'accepted'
    UNION ALL
    SELECT response_id, false, NOT bool_or(coalesce(state = 'accepted', false)), true,
           sum(prompt_tokens) FILTER (state IS DISTINCT FROM 'accepted'),
           sum(response_tokens) FILTER (state IS DISTINCT FROM 'accepted')
    FROM responses, stale WHERE response_tokens > 0 AND response_id IN (
        SELECT response_id FROM responses WHERE response_tokens > 0 AND state IS DISTINCT FROM 'accepted'
    ) GROUP BY response_id
), wanted AS (
    SELECT *, response_id IN (SELECT response_id FROM hidden_rows, stale) AS captured,
           (build_id, response_id) IN (
               SELECT (d.build_id, t.response_id) FROM drafters d JOIN drafter_responses t USING (drafter_id), stale
           ) AS trained
    FROM build_responses, stale WHERE NOT holdout
), marked AS MATERIALIZED (  -- 1 generated, 2 accepted, 4 captured, 8 trained
    SELECT w.build_id, w.category, w.source, w.prompt_id, w.replica, w.turn, m.counted, m.prompt_tokens, m.response_tokens,
           CASE WHEN generated THEN 1 ELSE 0 END | CASE WHEN accepted AND left_out IS NULL THEN 2 ELSE 0 END
           | CASE WHEN accepted AND left_out IS NULL AND captured THEN 4 ELSE 0 END
           | CASE WHEN accepted AND trained THEN 8 ELSE 0 END AS stages
    FROM wanted w JOIN made m USING (response_id)
), later AS (  -- stages that a prompt reaches with a later turn and not with its first
    SELECT build_id, category, source,
           bit_or(stages) FILTER (turn > 0) & ~coalesce(bit_or(stages) FILTER (turn = 0), 0) AS stages
    FROM marked SEMI JOIN (SELECT DISTINCT build_id, prompt_id, replica FROM marked WHERE turn > 0)
    USING (build_id, prompt_id, replica)
    GROUP BY build_id, category, source, prompt_id, replica
), sums AS (
    SELECT build_id, category, source, stages, count(*) AS rows, count(*) FILTER (counted) AS counted,
           count(*) FILTER (turn = 0) AS prompts, count(*) FILTER (counted AND turn = 0) AS counted_prompts,
           sum(prompt_tokens) AS prompt_tokens, sum(response_tokens) AS response_tokens
    FROM marked GROUP BY ALL
    UNION ALL
    SELECT build_id, category, source, stages, 0, 0, count(*), count(*), NULL, NULL FROM later GROUP BY ALL
)
SELECT s.build_id, 'selected' AS stage, s.category, s.source, count(*) AS rows, count(*) AS prompts,
       sum(p.prompt_tokens)::BIGINT AS prompt_tokens, NULL::BIGINT AS response_tokens
FROM stale, selections s JOIN builds b USING (build_id)
LEFT JOIN (SELECT candidates_id, prompt_id, prompt_tokens FROM prompts WHERE prompt_tokens IS NOT NULL) p
ON p.candidates_id = b.candidates_id AND p.prompt_id = s.prompt_id
WHERE NOT s.holdout GROUP BY ALL
UNION ALL
SELECT build_id, stage, category, source, sum(CASE WHEN bit = 1 THEN counted ELSE rows END)::BIGINT,
       sum(CASE WHEN bit = 1 THEN counted_prompts ELSE prompts END)::BIGINT,
       sum(prompt_tokens)::BIGINT, sum(response_tokens)::BIGINT
FROM sums JOIN (VALUES ('generated', 1), ('accepted', 2), ('captured', 4), ('trained', 8)) v(stage, bit) ON stages & bit > 0
GROUP BY ALL;
COMMENT ON VIEW counted_composition IS 'What composition counts, counted anew; without a row while kept_composition holds';

CREATE OR REPLACE VIEW composition AS
WITH stages AS (
    SELECT build_id, 'target' AS stage, category, NULL AS source, rows, rows AS prompts, NULL AS prompt_tokens,
           response_tokens
    FROM build_targets
    UNION ALL
    SELECT * FROM counted_composition
    UNION ALL
    SELECT * FROM kept_composition
    WHERE (SELECT counts FROM fingerprint) IS NOT DISTINCT FROM (SELECT max(counts) FROM kept_fingerprint)
)
SELECT build_id, stage, category, source, rows::BIGINT AS rows, prompt_tokens::BIGINT AS prompt_tokens,
       response_tokens::BIGINT AS response_tokens,
       rows / sum(rows) OVER (PARTITION BY build_id, stage) AS share_rows,
       response_tokens / sum(response_tokens) OVER (PARTITION BY build_id, stage) AS share_tokens,
       prompts::BIGINT AS prompts, prompts / sum(prompts) OVER (PARTITION BY build_id, stage) AS share_prompts,
       s.license
FROM stages LEFT JOIN sources s USING (build_id, source);
COMMENT ON VIEW composition IS 'What a build is made of at each stage (target, selected, generated, accepted, captured, trained), in rows (one a turn), tokens and prompts; shares are parts of one stage. Target and selected count prompts, target has no source, and the holdout is left out; a prompt that is sampled twice counts twice';
COMMENT ON COLUMN composition.stage IS 'target, selected, generated, accepted, captured or trained';
COMMENT ON COLUMN composition.source IS 'NULL for target';
COMMENT ON COLUMN composition.rows IS 'Answers, one a turn; prompts for target and selected';
COMMENT ON COLUMN composition.prompt_tokens IS 'Tokens of the prompts of these rows';
COMMENT ON COLUMN composition.response_tokens IS 'Generated tokens; of target, those that the manifest plans';
COMMENT ON COLUMN composition.share_rows IS 'Part of the stage, 0 to 1';
COMMENT ON COLUMN composition.share_tokens IS 'Part of the stage''s response_tokens, 0 to 1';
COMMENT ON COLUMN composition.prompts IS 'Prompts that these rows answer; each replica counts';
COMMENT ON COLUMN composition.share_prompts IS 'Part of the stage, 0 to 1';

CREATE OR REPLACE VIEW funnel AS
WITH origin AS (
    SELECT s.build_id, s.source, s.pool_id, s.chunks, b.candidates_id
    FROM sources s JOIN builds b USING (build_id)
), read AS (
    SELECT pool_id, chunk, reason, count(*) AS rows FROM source_rows GROUP BY ALL
), chosen AS (  -- a prompt that is taken again is taken once: its first replica stands for it
    SELECT build_id, source, holdout, count(*) AS rows FROM selections WHERE replica = 0 GROUP BY ALL
), candidates AS (
    SELECT candidates_id, source, count(*) AS rows FROM prompts GROUP BY ALL
)
SELECT o.build_id, o.source, 'read' AS reason, sum(r.rows)::BIGINT AS rows
FROM origin o JOIN read r ON r.pool_id = o.pool_id AND r.chunk < o.chunks GROUP BY ALL
UNION ALL
SELECT o.build_id, o.source, r.reason, sum(r.rows)::BIGINT
FROM origin o JOIN read r ON r.pool_id = o.pool_id AND r.chunk < o.chunks
WHERE r.reason IS NOT NULL GROUP BY ALL
UNION ALL
SELECT o.build_id, o.source, d.reason, d.rows::BIGINT
FROM origin o JOIN (SELECT candidates_id, source, reason, count(*) AS rows FROM drops GROUP BY ALL) d
  ON d.candidates_id = o.candidates_id AND d.source = o.source
UNION ALL
SELECT build_id, source, CASE WHEN holdout THEN 'held_out' ELSE 'selected' END, sum(rows)::BIGINT
FROM origin JOIN chosen USING (build_id, source) GROUP BY ALL
UNION ALL
SELECT o.build_id, o.source, 'not_needed', (c.rows - coalesce(t.rows, 0))::BIGINT
FROM origin o JOIN candidates c ON c.candidates_id = o.candidates_id AND c.source = o.source
LEFT JOIN (SELECT build_id, source, sum(rows) AS rows FROM chosen GROUP BY ALL) t
  ON t.build_id = o.build_id AND t.source = o.source
WHERE c.rows > coalesce(t.rows, 0);
COMMENT ON VIEW funnel IS 'Rows of a source by what became of them; read is the sum of all others';
COMMENT ON COLUMN funnel.reason IS 'read, selected, held_out, not_needed, or why rows were dropped';
COMMENT ON COLUMN funnel.rows IS 'Rows of the source';

CREATE OR REPLACE VIEW prompt_sources AS
SELECT candidates_id, prompt_id, source, pool_id, chunk, file, row_index, upstream_id, true AS kept FROM prompts
UNION ALL
SELECT d.candidates_id, d.prompt_id, d.source, d.pool_id, d.chunk, d.file, d.row_index, d.upstream_id, false
FROM drops d SEMI JOIN prompts p ON p.candidates_id = d.candidates_id AND p.prompt_id = d.prompt_id;
COMMENT ON VIEW prompt_sources IS 'Every source row that holds a candidate prompt; kept marks the one that it is labelled by';
COMMENT ON COLUMN prompt_sources.row_index IS '0-based, in file';
COMMENT ON COLUMN prompt_sources.kept IS 'The row that the prompt is labelled by';

CREATE OR REPLACE VIEW provenance AS
WITH best AS (  -- prompt_id is in the partition and the join so that a condition on it reaches the scan
    SELECT * FROM responses
    QUALIFY row_number() OVER (PARTITION BY response_id, prompt_id ORDER BY state = 'accepted' DESC, shard DESC, shard_row DESC) = 1
), kept AS (
    SELECT candidates_id, prompt_id, source, pool_id, file, row_index, upstream_id FROM prompts
), twice AS (  -- rows that several captures or shards hold: few, so that the others are joined as they are scanned
    SELECT response_id, min({'capture_id': capture_id, 'shard': shard, 'shard_row': shard_row}) AS first
    FROM hidden_rows WHERE response_id IN (SELECT response_id FROM hidden_rows GROUP BY response_id HAVING count(*) > 1)
    GROUP BY response_id
), hidden AS (
    SELECT h.response_id, h.capture_id, h.shard, h.shard_row FROM hidden_rows h LEFT JOIN twice t USING (response_id)
    WHERE t.response_id IS NULL OR (h.capture_id, h.shard, h.shard_row) = (t.first.capture_id, t.first.shard, t.first.shard_row)
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
LEFT JOIN best r ON r.response_id = br.response_id AND r.prompt_id = br.prompt_id
LEFT JOIN hidden h ON h.response_id = br.response_id
LEFT JOIN imported_answers a ON a.response_id = br.response_id
LEFT JOIN imports i ON i.import_id = a.import_id;
COMMENT ON VIEW provenance IS 'One row per build and response: from the source row (row_index is 0-based in its file) to hidden/<capture_id>/<hidden_shard>; imported_* say which row of which imported corpus an answer was taken from';
COMMENT ON COLUMN provenance.replica IS '0-based; above 0 a prompt that is sampled again';
COMMENT ON COLUMN provenance.turn IS '0-based';
COMMENT ON COLUMN provenance.row_index IS '0-based, in file';
COMMENT ON COLUMN provenance.upstream_id IS 'The row''s own id in its dataset';
COMMENT ON COLUMN provenance.thinking IS 'Whether the recipe has the target reason first';
COMMENT ON COLUMN provenance.state IS 'accepted, rejected, left_out or unfinished';
COMMENT ON COLUMN provenance.reason IS 'Why it is not accepted, or left out';
COMMENT ON COLUMN provenance.finish_reason IS 'stop, length, or as the engine says';
COMMENT ON COLUMN provenance.attempt IS '0-based';
COMMENT ON COLUMN provenance.device IS 'As engine_samples.device';
COMMENT ON COLUMN provenance.shard IS 'File of responses/';
COMMENT ON COLUMN provenance.shard_row IS '0-based, in shard';
COMMENT ON COLUMN provenance.hidden_shard IS 'File of hidden/<capture_id>/';
COMMENT ON COLUMN provenance.hidden_row IS '0-based, in hidden_shard';
COMMENT ON COLUMN provenance.holdout IS 'Measured on, never trained on';
COMMENT ON COLUMN provenance.imported_file IS 'File of the imported corpus';
COMMENT ON COLUMN provenance.imported_row IS '0-based, in imported_file';
COMMENT ON COLUMN provenance.notes IS 'What was noticed of the answer';
COMMENT ON COLUMN provenance.reasoning_tokens IS 'Tokens of the answer that are reasoning, with its end mark';

CREATE OR REPLACE VIEW unfinished AS
WITH wanted AS (
    SELECT * FROM build_responses WHERE left_out IS NOT NULL
    UNION ALL
    SELECT b.* FROM build_responses b ANTI JOIN accepted_responses r USING (response_id) WHERE left_out IS NULL
), said AS (
    SELECT response_id, max_by(reason, (shard, shard_row)) AS reason FROM responses WHERE reason IS NOT NULL
    GROUP BY response_id
)
SELECT w.build_id, w.prompt_id, w.replica, w.turn, w.category,
       coalesce(w.left_out, s.reason, 'not answered yet') AS why
FROM wanted w LEFT JOIN said s USING (response_id);
COMMENT ON VIEW unfinished IS 'Answers that a build wants and does not have, and why';
COMMENT ON COLUMN unfinished.why IS 'Why it was left out, the reason of the last attempt, or not answered yet';

CREATE OR REPLACE VIEW throughput AS
SELECT run_id, engine, device, sampled_at, running, waiting, tokens_per_s, kv_use, prefix_hits FROM engine_samples;
COMMENT ON VIEW throughput IS 'Samples of each engine over a run, every few seconds; device is what responses.device says';
COMMENT ON COLUMN throughput.running IS 'Requests in the engine';
COMMENT ON COLUMN throughput.waiting IS 'Requests in its queue';
COMMENT ON COLUMN throughput.tokens_per_s IS 'Tokens a second that its run generates or captures (runs.command says which)';
COMMENT ON COLUMN throughput.kv_use IS 'Part of the KV cache in use, 0 to 1';
COMMENT ON COLUMN throughput.prefix_hits IS 'Part of the prompt tokens that the prefix cache had, 0 to 1';

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
COMMENT ON COLUMN acceptance_by_category.measured_by IS 'walk, anchors, vllm, or ddtree_<nodes>';
COMMENT ON COLUMN acceptance_by_category.acceptance_length IS 'Tokens a target step, bonus token included';
COMMENT ON COLUMN acceptance_by_category.drafts IS 'Target steps that verified a draft';
COMMENT ON COLUMN acceptance_by_category.accepted_tokens IS 'Drafted tokens that the target accepted';
COMMENT ON COLUMN acceptance_by_category.rows IS 'Held-out answers';
COMMENT ON COLUMN acceptance_by_category.low IS 'Of the 95% interval';
COMMENT ON COLUMN acceptance_by_category.high IS 'Of the 95% interval';

CREATE OR REPLACE VIEW dropped AS
SELECT b.build_id, d.source, d.reason, d.detail, d.file, d.row_index, d.upstream_id, d.prompt_id, d.winner_prompt_id,
       d.winner_source, w.file AS winner_file, w.row_index AS winner_row, d.similarity, d.eval_set, d.eval_item, d.overlap
FROM builds b JOIN drops d USING (candidates_id)
LEFT JOIN prompts w ON w.candidates_id = d.candidates_id AND w.prompt_id = d.winner_prompt_id
UNION ALL
SELECT s.build_id, s.source, r.reason, r.detail, r.file, r.row_index, r.upstream_id, r.prompt_id,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM sources s JOIN source_rows r ON r.pool_id = s.pool_id AND r.chunk < s.chunks WHERE r.reason IS NOT NULL;
COMMENT ON VIEW dropped IS 'Every source row that a build left out and why, with the row that a duplicate lost to or the evaluation item that it overlaps; prompt_text has the texts of both, by prompt_id and winner_prompt_id';
COMMENT ON COLUMN dropped.detail IS 'What exactly: a number, a column';
COMMENT ON COLUMN dropped.file IS 'Of the source';
COMMENT ON COLUMN dropped.row_index IS '0-based, in file';
COMMENT ON COLUMN dropped.winner_prompt_id IS 'The prompt that it lost to';
COMMENT ON COLUMN dropped.winner_row IS '0-based, in winner_file';
COMMENT ON COLUMN dropped.similarity IS 'Jaccard, 0 to 1, of near duplicates';
COMMENT ON COLUMN dropped.overlap IS 'Words that it shares with the evaluation item';

CREATE OR REPLACE VIEW lengths AS
SELECT b.build_id, b.category, count(*) AS answers, avg(r.response_tokens) AS mean_tokens,
       quantile_cont(r.response_tokens, 0.5) AS median_tokens, quantile_cont(r.response_tokens, 0.95) AS p95_tokens,
       max(r.response_tokens) AS most_tokens, avg(r.prompt_tokens) AS mean_prompt_tokens,
       avg(r.reasoning_tokens) AS mean_reasoning_tokens, count(*) FILTER (r.finish_reason = 'length') AS truncated
FROM build_responses b JOIN accepted_responses r USING (response_id)
WHERE NOT b.holdout AND b.left_out IS NULL GROUP BY ALL;
COMMENT ON VIEW lengths IS 'How long the accepted answers of a build are, by category, in tokens; the holdout is left out';
COMMENT ON COLUMN lengths.answers IS 'One a turn';
COMMENT ON COLUMN lengths.p95_tokens IS '95 of 100 answers are at most so long';
COMMENT ON COLUMN lengths.truncated IS 'Answers that ended at max_tokens';

CREATE OR REPLACE VIEW shared_rows AS
WITH holders AS (
    SELECT candidates_id, prompt_id, source, file, row_index FROM prompts
), again AS (
    SELECT candidates_id, coalesce(winner_prompt_id, prompt_id) AS prompt_id, source, file, row_index, reason, similarity
    FROM drops WHERE reason IN ('same_prompt', 'duplicate', 'near_duplicate')
)
SELECT b.build_id, h.prompt_id, h.source, h.file, h.row_index, a.source AS other_source, a.file AS other_file,
       a.row_index AS other_row, a.reason, coalesce(a.similarity, 1) AS similarity
FROM builds b JOIN again a USING (candidates_id)
JOIN holders h ON h.candidates_id = a.candidates_id AND h.prompt_id = a.prompt_id
WHERE h.source <> a.source;
COMMENT ON VIEW shared_rows IS 'Rows that two sources share: the one that a build keeps (source) and the one that it dropped as alike (other_source)';
COMMENT ON COLUMN shared_rows.source IS 'Who keeps the prompt';
COMMENT ON COLUMN shared_rows.other_source IS 'Whose row was dropped';
COMMENT ON COLUMN shared_rows.similarity IS '1, or the Jaccard of a near duplicate';

CREATE OR REPLACE VIEW throughput_by_hour AS
SELECT run_id, device, date_trunc('hour', sampled_at) AS hour, avg(tokens_per_s) AS tokens_per_s,
       avg(running) AS running, avg(waiting) AS waiting, avg(kv_use) AS kv_use, count(*) AS samples, command
FROM engine_samples LEFT JOIN runs USING (run_id) GROUP BY ALL;
COMMENT ON VIEW throughput_by_hour IS 'Means of the samples of each run and device, hour by hour (UTC)';
COMMENT ON COLUMN throughput_by_hour.hour IS 'Start of the hour, UTC';
COMMENT ON COLUMN throughput_by_hour.tokens_per_s IS 'Tokens a second that the command generates or captures, mean';
COMMENT ON COLUMN throughput_by_hour.command IS 'The stage: generate, extract';
COMMENT ON COLUMN throughput_by_hour.running IS 'Requests in the engine, mean';
COMMENT ON COLUMN throughput_by_hour.waiting IS 'Requests in its queue, mean';
COMMENT ON COLUMN throughput_by_hour.kv_use IS 'Part of the KV cache in use, 0 to 1, mean';

CREATE OR REPLACE VIEW build_difference AS
WITH pairs AS (
    SELECT o.build_id AS old_build_id, n.build_id AS new_build_id FROM builds o JOIN builds n ON o.build_id <> n.build_id
), chosen AS (
    SELECT build_id, prompt_id, replica, category, source FROM selections WHERE NOT holdout
)
SELECT p.old_build_id, p.new_build_id, CASE WHEN a.prompt_id IS NULL THEN 'added'
       WHEN (a.category, a.source) IS DISTINCT FROM (z.category, z.source) THEN 'labelled otherwise' ELSE 'kept' END AS change,
       z.category, z.source, count(*) AS prompts
FROM pairs p JOIN chosen z ON z.build_id = p.new_build_id
LEFT JOIN chosen a ON a.build_id = p.old_build_id AND a.prompt_id = z.prompt_id AND a.replica = z.replica
GROUP BY ALL
UNION ALL
SELECT p.old_build_id, p.new_build_id, 'removed', a.category, a.source, count(*)
FROM pairs p JOIN chosen a ON a.build_id = p.old_build_id
ANTI JOIN chosen z ON z.build_id = p.new_build_id AND z.prompt_id = a.prompt_id AND z.replica = a.replica
GROUP BY ALL;
COMMENT ON VIEW build_difference IS 'Prompts that a later build (new_build_id) adds to an earlier one, removes, keeps or labels otherwise, by category and source; the holdout is left out';
COMMENT ON COLUMN build_difference.change IS 'added, removed, kept or labelled otherwise';
COMMENT ON COLUMN build_difference.prompts IS 'Each replica counts';
