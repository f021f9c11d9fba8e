-- The views as plain as they can be said: what the fast ones in views.sql must equal.
CREATE VIEW plain_composition AS
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

CREATE VIEW plain_funnel AS
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

CREATE VIEW plain_provenance AS
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

CREATE VIEW plain_unfinished AS
SELECT br.build_id, br.prompt_id, br.replica, br.turn, br.category,
       coalesce(br.left_out, max_by(r.reason, (r.shard, r.shard_row)), 'not answered yet') AS why
FROM build_responses br
LEFT JOIN responses r USING (response_id)
GROUP BY br.build_id, br.prompt_id, br.replica, br.turn, br.category, br.response_id, br.left_out
HAVING br.left_out IS NOT NULL OR count(*) FILTER (r.state = 'accepted') = 0;
