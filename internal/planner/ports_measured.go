package planner

import (
	"context"
	"time"
)

// MeasuredStore keeps measured runs and the fits made of them.
type MeasuredStore interface {
	// SaveRuns keeps runs, all or none. With a key that was used before for the
	// same request it keeps nothing and returns the ids of then; for another
	// request it fails with fault.Conflict.
	SaveRuns(ctx context.Context, runs []RunRecord, key Key) (ids []string, err error)
	// LoadRun returns a run by its id, or fault.NotFound.
	LoadRun(ctx context.Context, id string) (RunRecord, error)
	// ListRuns returns up to q.Limit runs, newest first.
	ListRuns(ctx context.Context, q RunQuery) ([]RunRecord, error)
	// SaveCalibration keeps a fit, as SaveRuns does runs.
	SaveCalibration(ctx context.Context, c CalibrationRecord, key Key) (id string, err error)
	// LoadCalibration returns a fit by its id, or fault.NotFound.
	LoadCalibration(ctx context.Context, id string) (CalibrationRecord, error)
	// ListCalibrations returns up to q.Limit fits, newest first.
	ListCalibrations(ctx context.Context, q CalibrationQuery) ([]CalibrationRecord, error)
	// SetCalibrationState changes the state of a fit, or fails with
	// fault.NotFound. Making one active retires the one that was for the same
	// card and framework.
	SetCalibrationState(ctx context.Context, id, state string) error
}

// Key is an idempotency key and what it was used for; the zero Key is none.
type Key struct {
	Name string
	Hash string // of the request
}

// Software is a framework and its version, as a calibration is for.
type Software struct {
	Name    string `json:"name"`
	Version string `json:"version"` // major.minor
}

// RunRecord is a measured run as it is kept: what lists need in columns, and
// the whole as JSON.
type RunRecord struct {
	ID           string
	CreatedAt    time.Time
	GPU          string // catalogue key, or the card's name
	Architecture string
	Framework    Software
	Model        string
	Flagged      string // why it is not fitted, or empty
	Search       string
	Document     []byte // a ReportedRun, JSON
}

// RunFilter narrows a list of runs; an empty field does not.
type RunFilter struct {
	GPU     string // catalogue key or alias, or an architecture
	Version string // of the framework
	Model   string
	Flagged string // true or false
	Text    string
	Limit   int
	Cursor  string
}

// RunQuery is a RunFilter in the catalogue's spelling, with its position.
type RunQuery struct {
	RunFilter
	Framework string
	After     *Position
}

// CalibrationRecord is a fit as it is kept.
type CalibrationRecord struct {
	ID        string
	CreatedAt time.Time
	GPU       string // catalogue key, or an architecture
	Framework Software
	State     string
	Document  []byte // a Calibration, JSON; its state is the record's
}

// CalibrationFilter narrows a list of fits; an empty field does not.
type CalibrationFilter struct {
	GPU    string
	State  string
	Limit  int
	Cursor string
}

// CalibrationQuery is a CalibrationFilter with its position.
type CalibrationQuery struct {
	CalibrationFilter
	After *Position
}
