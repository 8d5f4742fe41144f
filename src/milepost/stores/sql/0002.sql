-- Pages of runs, polls and pruning read what they give, however many runs there are.

-- When a run was last changed that nobody owns. A renewal of a lease, which is of a run that somebody owns, leaves it as it is
-- (NULL), and so touches no index still. All of `runs` is written anew once.
ALTER TABLE runs ADD COLUMN rested_at double precision
    GENERATED ALWAYS AS (CASE WHEN status <> 'running' THEN updated_at END) STORED;
CREATE INDEX runs_rested ON runs (status, rested_at, run_id) WHERE rested_at IS NOT NULL;

-- What is listed is read in the order of id.
CREATE INDEX runs_by_flow ON runs (flow, id);
CREATE INDEX runs_by_status ON runs (status, id);
CREATE INDEX runs_by_flow_and_status ON runs (flow, status, id);
CREATE INDEX runs_by_tag ON runs USING gin (tags jsonb_path_ops) WHERE tags <> '{}';

-- What is due has indexes of its own, which are as small as what waits.
DROP INDEX runs_due;
CREATE INDEX runs_ready ON runs (flow, id) WHERE status = 'ready' AND wake_at IS NULL;
CREATE INDEX runs_timed ON runs (flow, status, wake_at) WHERE wake_at IS NOT NULL;
