package web

import (
	"cmp"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"memplan/internal/fault"
	"memplan/internal/jobfile"
	"memplan/internal/wire"
)

// The keys of the import form.
const (
	fileKey   = "file"   // an uploaded file
	textKey   = "text"   // or its text
	formatKey = "format" // whose it is; empty: found out
	modelKey  = "model"  // where the file names none
)

// mostImported bounds what is uploaded.
const mostImported = 1 << 20

// imported is the import page: what was given and what it was read as.
type imported struct {
	Text, Format, Model string
	Reading             *jobfile.Reading // nil: nothing was given yet
	Said                []said
	Plan                string // the address of the job as a plan
	Failed              error

	values url.Values // the job
}

// said is a setting the file decides.
type said struct{ Path, Value string }

// importForm is the page before anything was given.
func (s *site) importForm(w http.ResponseWriter, r *http.Request) error {
	return render(w, r, http.StatusOK, importPage(s.chrome("From another tool's file", "Plan"), imported{}))
}

// importFile reads another tool's file and shows what it says, with the way to
// the plan.
func (s *site) importFile(w http.ResponseWriter, r *http.Request) error {
	in, err := uploaded(w, r)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if in.Failed = in.read(); in.Failed != nil {
		if fault.KindOf(in.Failed) != fault.Invalid {
			return in.Failed
		}
		code = http.StatusUnprocessableEntity
	}
	return render(w, r, code, importPage(s.chrome("From another tool's file", "Plan"), in))
}

// uploaded is what the form sent: the file if there is one, else the text.
func uploaded(w http.ResponseWriter, r *http.Request) (imported, error) {
	r.Body = http.MaxBytesReader(w, r.Body, mostImported+mostImported/4)
	if err := r.ParseMultipartForm(mostImported); err != nil && !errors.Is(err, http.ErrNotMultipart) {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return imported{}, fault.New(fault.TooLarge, "The file is larger than 1 MiB.")
		}
		return imported{}, fault.New(fault.Invalid, "The form could not be read: %v", err)
	}
	in := imported{Text: r.PostFormValue(textKey), Format: r.PostFormValue(formatKey), Model: r.PostFormValue(modelKey)}
	f, _, err := r.FormFile(fileKey)
	if err != nil {
		return in, nil // no file: the text counts
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, mostImported))
	if err != nil {
		return imported{}, fault.Wrap(fault.Internal, "web: read upload", err)
	}
	if len(data) > 0 {
		in.Text = string(data)
	}
	return in, nil
}

// read reads the text as a file of the format.
func (in *imported) read() error {
	if in.Text == "" {
		return fault.New(fault.Invalid, "Choose a file or paste its text.")
	}
	reading := jobfile.Detect
	if in.Format != "" {
		f, unknown := jobfile.Named(in.Format)
		if unknown != nil {
			return unknown
		}
		reading = f.Read
	}
	got, err := reading([]byte(in.Text))
	if err != nil {
		return err
	}
	got.Job.Model.ID = cmp.Or(got.Job.Model.ID, in.Model)
	in.Reading = &got
	values, err := wire.EncodeValues(got.Job)
	if err != nil {
		return err
	}
	in.values = values
	in.Plan = "/plan?" + encodeQuery(values, binary)
	for _, path := range jobfile.Settings(got.Job) {
		in.Said = append(in.Said, said{path, jobfile.Value(got.Job, path)})
	}
	return nil
}

// keys are those of the job, for a form that adds the model.
func (in imported) keys() []string { return slices.Sorted(maps.Keys(in.values)) }
