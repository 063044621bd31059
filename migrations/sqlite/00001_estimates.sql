-- +goose Up

-- One kept answer. Times are microseconds since 1970, UTC, so that both engines
-- keep and compare the same number.
CREATE TABLE estimates (
    id                   TEXT    NOT NULL PRIMARY KEY,
    created_at_us        INTEGER NOT NULL,
    job_hash             TEXT    NOT NULL,
    name                 TEXT    NOT NULL,
    model                TEXT    NOT NULL,
    gpu                  TEXT    NOT NULL,
    verdict              TEXT    NOT NULL,
    summary              TEXT    NOT NULL,
    peak_allocated_bytes INTEGER NOT NULL,
    required_bytes       INTEGER NOT NULL,
    usable_bytes         INTEGER NOT NULL,
    engine               TEXT    NOT NULL,
    labels               TEXT    NOT NULL, -- JSON object, for reading; estimate_labels is for finding
    search               TEXT    NOT NULL, -- name, model and gpu in lower case
    document             BLOB    NOT NULL  -- the whole answer: JSON, gzip
) STRICT;

CREATE INDEX estimates_newest ON estimates (created_at_us DESC, id DESC);

CREATE TABLE estimate_labels (
    key         TEXT NOT NULL,
    value       TEXT NOT NULL,
    estimate_id TEXT NOT NULL REFERENCES estimates (id) ON DELETE CASCADE,
    PRIMARY KEY (key, value, estimate_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX estimate_labels_estimate ON estimate_labels (estimate_id);

-- What an Idempotency-Key was used for.
CREATE TABLE idempotency_keys (
    key         TEXT NOT NULL PRIMARY KEY,
    estimate_id TEXT NOT NULL REFERENCES estimates (id) ON DELETE CASCADE,
    job_hash    TEXT NOT NULL
) STRICT;

CREATE INDEX idempotency_keys_estimate ON idempotency_keys (estimate_id);

-- config.json files of a hub.
CREATE TABLE hub_configs (
    id            TEXT    NOT NULL PRIMARY KEY,
    config        TEXT    NOT NULL,
    fetched_at_us INTEGER NOT NULL
) STRICT;

-- +goose Down
DROP TABLE hub_configs;
DROP TABLE idempotency_keys;
DROP TABLE estimate_labels;
DROP TABLE estimates;
