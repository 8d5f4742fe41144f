-- What the library's tables are called is decided by the schema that they are made in.

CREATE TABLE migrations (
    version integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE runs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id text COLLATE "C" NOT NULL UNIQUE,
    flow text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    created_at double precision NOT NULL,
    updated_at double precision NOT NULL,
    epoch bigint NOT NULL,
    nonce text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    lease double precision NOT NULL,
    lease_until double precision,
    wake_at double precision,
    waiting text NOT NULL,
    crash_count bigint NOT NULL,
    crashed_at bigint NOT NULL,
    signals bigint NOT NULL,
    cancel text,
    degraded boolean NOT NULL,
    missed text NOT NULL,
    tags jsonb NOT NULL,
    live text NOT NULL,
    worked boolean NOT NULL,
    sequence bigint NOT NULL,
    pruned bigint NOT NULL
) WITH (fillfactor = 70);

-- A renewal of a lease writes lease_until and updated_at, which are in no index: so it touches no index at all.
CREATE INDEX runs_due ON runs (flow, status, wake_at, id) WHERE status IN ('ready', 'running', 'waiting');
CREATE INDEX runs_drained ON runs (flow, id) WHERE status = 'interrupted' AND worked;
CREATE INDEX runs_cancel ON runs (flow) WHERE cancel IS NOT NULL;

-- header is whole JSON; of a record from outside it is NULL, and note has what the store knows of it. It is text, for
-- jsonb would change it. A payload is packed here or kept as it came, so nothing else compresses it.
CREATE TABLE records (
    run bigint NOT NULL,
    sequence bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    node_id text COLLATE "C" NOT NULL,
    visit bigint NOT NULL,
    size bigint NOT NULL,
    packing text COLLATE "C" NOT NULL,
    note text,
    header text,
    payload bytea,
    PRIMARY KEY (run, sequence)
) WITH (toast_tuple_target = 8160);
ALTER TABLE records ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE INDEX records_by_node ON records (run, node_id, sequence) WHERE node_id <> '';

CREATE TABLE signals (
    run bigint NOT NULL,
    number bigint NOT NULL,
    name text NOT NULL,
    payload bytea,
    signal_id text COLLATE "C",
    wait_id text,
    sent_at double precision NOT NULL,
    PRIMARY KEY (run, number)
);
CREATE UNIQUE INDEX signals_by_id ON signals (run, signal_id) WHERE signal_id IS NOT NULL;
