package planner

import (
	"context"
	"time"

	"memplan/internal/estimator"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// Store keeps estimates and hub configurations. Its errors are of package
// fault; times come back in UTC, truncated to the microsecond.
type Store interface {
	BenchStore
	// SaveEstimate keeps a record and returns its id. With a key that was used
	// before for the same job it keeps nothing and returns the id of then; for
	// another job it fails with fault.Conflict.
	SaveEstimate(ctx context.Context, r Record, key string) (id string, err error)
	// KeyedEstimate returns the id saved under an idempotency key: fault.NotFound
	// when the key is new, fault.Conflict when it was used for another job.
	KeyedEstimate(ctx context.Context, key, jobHash string) (id string, err error)
	// LoadEstimate returns a record by its id, or fault.NotFound.
	LoadEstimate(ctx context.Context, id string) (Record, error)
	// ListEstimates returns up to q.Limit summaries, newest first.
	ListEstimates(ctx context.Context, q Query) ([]Summary, error)
	// HubConfig returns a cached configuration, or fault.NotFound.
	HubConfig(ctx context.Context, id string) (HubEntry, error)
	// SaveHubConfig keeps a configuration in place of an older one.
	SaveHubConfig(ctx context.Context, id string, e HubEntry) error
	MeasuredStore
	// ReadyCheck fails when the database does not answer.
	ReadyCheck(ctx context.Context) error
}

// Hub fetches a model's config.json by its hub id, optionally "id@revision".
// Its errors are fault.NotFound, fault.Invalid and fault.Unavailable.
type Hub interface {
	Config(ctx context.Context, id string) ([]byte, error)
}

// HubEntry is a configuration as the hub gave it, and when.
type HubEntry struct {
	Config    []byte
	FetchedAt time.Time
}

// Record is an estimate as it is kept: what lists need in columns, and the
// whole answer as JSON.
type Record struct {
	Summary
	JobHash  string // hex SHA-256 of the job as asked
	Document []byte // the estimate, JSON
}

// Summary is one line of a list of estimates.
type Summary struct {
	ID        string            `json:"id"`
	CreatedAt time.Time         `json:"created_at"`
	Name      string            `json:"name,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Model     string            `json:"model"`
	GPU       string            `json:"gpu"`
	Verdict   estimator.Verdict `json:"verdict"`
	Text      string            `json:"summary"` // the estimate's sentence
	Peak      units.Bytes       `json:"peak_allocated_bytes"`
	Required  units.Bytes       `json:"required_bytes"`
	Usable    units.Bytes       `json:"usable_bytes"`
	Engine    string            `json:"engine"` // the engine's version
}

// Filter narrows a list of estimates; an empty field does not.
type Filter struct {
	Labels  map[string]string // every one must be there with this value
	GPU     string            // catalogue key or any alias
	Verdict estimator.Verdict
	Model   string // id or alias, or the name shown for a model without one
	Text    string // part of name, model or card, ignoring case
	Limit   int    // 1 to 200; 0 means 50
	Cursor  string // Page.NextCursor of the page before
}

// Page is one page of a list of estimates.
type Page = wire.Page[Summary]

// Query is a Filter whose card and model are in the catalogue's spelling, whose
// limit is set and whose cursor is a position.
type Query struct {
	Filter
	After *Position
}

// Position is the last record of a page: the next one begins after it.
type Position struct {
	CreatedAt time.Time
	ID        string
}
