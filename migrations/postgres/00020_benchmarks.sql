-- +goose Up
CREATE TABLE benchmarks (
    id TEXT COLLATE "C" PRIMARY KEY,
    created_at_us BIGINT NOT NULL,
    state TEXT NOT NULL,
    device_id TEXT NOT NULL,
    worker TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    beat BIGINT NOT NULL, -- grows while a worker is at it
    stopping BIGINT NOT NULL, -- 1 once a running one was cancelled
    seconds_left BIGINT NOT NULL,
    error TEXT NOT NULL,
    request TEXT NOT NULL -- what was asked for, JSON
);

CREATE INDEX benchmarks_by_time ON benchmarks (created_at_us DESC, id DESC);
-- One card runs one benchmark at a time.
CREATE UNIQUE INDEX benchmarks_one_at_a_time ON benchmarks (device_id) WHERE state = 'running';

CREATE TABLE benchmark_results (
    benchmark_id TEXT NOT NULL REFERENCES benchmarks (id),
    probe TEXT NOT NULL,
    state TEXT NOT NULL,
    document BYTEA NOT NULL, -- the result, JSON, compressed
    PRIMARY KEY (benchmark_id, probe)
);

CREATE TABLE benchmark_keys (
    key TEXT PRIMARY KEY,
    benchmark_id TEXT NOT NULL REFERENCES benchmarks (id),
    request_hash TEXT NOT NULL
);

-- The cards of the hosts of a fleet, as their workers told last.
CREATE TABLE devices (
    id TEXT PRIMARY KEY,
    seen_at_us BIGINT NOT NULL,
    document TEXT NOT NULL -- the device, JSON
);

-- +goose Down
DROP TABLE devices;
DROP TABLE benchmark_keys;
DROP TABLE benchmark_results;
DROP TABLE benchmarks;
