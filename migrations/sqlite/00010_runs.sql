-- +goose Up

-- One measured job. Its document is the run with what was predicted for it.
CREATE TABLE runs (
    id                TEXT    NOT NULL PRIMARY KEY,
    created_at_us     INTEGER NOT NULL,
    gpu               TEXT    NOT NULL,
    architecture      TEXT    NOT NULL,
    framework         TEXT    NOT NULL,
    framework_version TEXT    NOT NULL,
    model             TEXT    NOT NULL,
    flagged           TEXT    NOT NULL, -- why it is not fitted, or empty
    search            TEXT    NOT NULL, -- name, model, card and source in lower case
    document          BLOB    NOT NULL  -- JSON, gzip
) STRICT;

CREATE INDEX runs_newest ON runs (created_at_us DESC, id DESC);

-- One fit of measured runs. All but its state is written once.
CREATE TABLE calibrations (
    id                TEXT    NOT NULL PRIMARY KEY,
    created_at_us     INTEGER NOT NULL,
    gpu               TEXT    NOT NULL, -- catalogue key, or an architecture
    framework         TEXT    NOT NULL,
    framework_version TEXT    NOT NULL,
    state             TEXT    NOT NULL, -- candidate, active, retired
    document          BLOB    NOT NULL  -- JSON, gzip
) STRICT;

CREATE INDEX calibrations_newest ON calibrations (created_at_us DESC, id DESC);
CREATE UNIQUE INDEX calibrations_active ON calibrations (gpu, framework, framework_version) WHERE state = 'active';

-- What a write under an Idempotency-Key answered.
CREATE TABLE keyed_answers (
    key          TEXT NOT NULL PRIMARY KEY,
    request_hash TEXT NOT NULL,
    answer       TEXT NOT NULL -- ids, with a space between them
) STRICT;

-- +goose Down
DROP TABLE keyed_answers;
DROP TABLE calibrations;
DROP TABLE runs;
