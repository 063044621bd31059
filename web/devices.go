package web

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"

	"memplan/internal/planner"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// Bench is what the pages of cards and benchmarks ask of the use cases.
type Bench interface {
	ListDevices(ctx context.Context) (planner.DeviceList, error)
	BenchProbes() []planner.Probe
	StartBenchmark(ctx context.Context, r planner.BenchRequest, key string) (planner.Benchmark, error)
	Benchmark(ctx context.Context, id string) (planner.Benchmark, error)
	Benchmarks(ctx context.Context, limit int, cursor string) (wire.Page[planner.Benchmark], error)
	CancelBenchmark(ctx context.Context, id string) (planner.Benchmark, error)
	RetryBenchmark(ctx context.Context, id string) (planner.Benchmark, error)
}

// shownBenchmarks is how many of the newest the page of cards lists.
const shownBenchmarks = 20

// devices is the attached cards, what runs on them, and what was measured.
func (s *site) devices(w http.ResponseWriter, r *http.Request) error {
	u := unitOf(r.URL.Query().Get(unitKey))
	list, err := s.planner.ListDevices(r.Context())
	if err != nil {
		return err
	}
	recent, err := s.planner.Benchmarks(r.Context(), shownBenchmarks, "")
	if err != nil {
		return err
	}
	c := s.chrome("Devices", "Devices")
	c.Unit, c.Toggle = u, inUnit("/devices", u.other())
	return render(w, r, http.StatusOK, devicesPage(c, list, recent.Items, s.planner.BenchProbes()))
}

// inUnit is a page's address in a unit.
func inUnit(path string, u unit) string {
	if u == binary {
		return path
	}
	return path + "?" + unitKey + "=" + string(u)
}

// devicesLive is the cards as server-sent events.
func (s *site) devicesLive(w http.ResponseWriter, r *http.Request) error {
	u := unitOf(r.URL.Query().Get(unitKey))
	return s.live(w, r, func(ctx context.Context) (templ.Component, bool, error) {
		list, err := s.planner.ListDevices(ctx)
		return deviceCards(u, list, s.planner.BenchProbes()), false, err
	})
}

// startBenchmark queues a benchmark and leads to it.
func (s *site) startBenchmark(w http.ResponseWriter, r *http.Request) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxQuery)
	b, err := s.planner.StartBenchmark(r.Context(), planner.BenchRequest{
		Device: r.PostFormValue("device"), Force: r.PostFormValue("force") != "",
	}, "")
	if err != nil {
		return err
	}
	http.Redirect(w, r, "/benchmarks/"+b.ID, http.StatusSeeOther)
	return nil
}

// benchmark is one benchmark.
func (s *site) benchmark(w http.ResponseWriter, r *http.Request) error {
	b, err := s.planner.Benchmark(r.Context(), chi.URLParam(r, "id"))
	if err != nil {
		return err
	}
	c := s.chrome("Benchmark", "Devices")
	c.Unit = unitOf(r.URL.Query().Get(unitKey))
	c.Toggle = inUnit("/benchmarks/"+b.ID, c.Unit.other())
	return render(w, r, http.StatusOK, benchmarkPage(c, b))
}

// benchmarkLive is one benchmark as server-sent events, until it has ended.
func (s *site) benchmarkLive(w http.ResponseWriter, r *http.Request) error {
	u := unitOf(r.URL.Query().Get(unitKey))
	id := chi.URLParam(r, "id")
	if _, err := s.planner.Benchmark(r.Context(), id); err != nil {
		return err
	}
	return s.live(w, r, func(ctx context.Context) (templ.Component, bool, error) {
		b, err := s.planner.Benchmark(ctx, id)
		return benchmarkState(u, b), b.State.Ended(), err
	})
}

// cancelBenchmark cancels a benchmark and leads back to it.
func (s *site) cancelBenchmark(w http.ResponseWriter, r *http.Request) error {
	return s.changeBenchmark(w, r, s.planner.CancelBenchmark)
}

// retryBenchmark queues a benchmark again and leads back to it.
func (s *site) retryBenchmark(w http.ResponseWriter, r *http.Request) error {
	return s.changeBenchmark(w, r, s.planner.RetryBenchmark)
}

func (s *site) changeBenchmark(w http.ResponseWriter, r *http.Request, change func(context.Context, string) (planner.Benchmark, error)) error {
	b, err := change(r.Context(), chi.URLParam(r, "id"))
	if err != nil {
		return err
	}
	http.Redirect(w, r, "/benchmarks/"+b.ID, http.StatusSeeOther)
	return nil
}

// refreshEvery is how often live parts of pages look for what is new.
const refreshEvery = 2 * time.Second

// live sends a part of a page as server-sent events, whenever it has changed.
// An event named end is the last: the browser need not ask again.
func (s *site) live(w http.ResponseWriter, r *http.Request, look func(context.Context) (c templ.Component, last bool, err error)) error {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // proxies hand each event on at once
	control := http.NewResponseController(w)
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	before := ""
	for {
		c, last, err := look(r.Context())
		var b bytes.Buffer
		if err == nil {
			err = c.Render(r.Context(), &b)
		}
		if err != nil {
			if r.Context().Err() == nil {
				s.log.ErrorContext(r.Context(), "live page failed", "path", r.URL.Path, "error", err)
			}
			return nil // the answer has begun
		}
		event := ": nothing new\n\n"
		if now := b.String(); now != before {
			event, before = "data: "+strings.ReplaceAll(now, "\n", "\ndata: ")+"\n\n", now
		}
		if last {
			event += "event: end\ndata: \n\n"
		}
		if _, err := w.Write([]byte(event)); err != nil || control.Flush() != nil || last {
			return nil
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-s.stopping:
			return nil
		case <-tick.C:
		}
	}
}

// usedOf is a card's memory in words.
func usedOf(u unit, m planner.DeviceMemory) string {
	return u.number(m.Used) + " of " + u.number(m.Total) + " " + u.String() + " used, " + u.number(m.Free) + " free"
}

// share is the used part of a card, for a meter from 0 to 1.
func share(m planner.DeviceMemory) string {
	if m.Total <= 0 {
		return "0"
	}
	return fmt.Sprintf("%.4f", float64(m.Used)/float64(m.Total))
}

// processMemory is what a process holds, or a dash where it is not told.
func processMemory(u unit, used *units.Bytes) string {
	if used == nil {
		return "–"
	}
	return u.number(*used)
}

// deviceFacts is a card's line of small print.
func deviceFacts(d planner.Device) string {
	var all []string
	add := func(label, value string) {
		if value != "" {
			all = append(all, label+" "+value)
		}
	}
	add("driver", d.Driver)
	add("CUDA", d.CUDA)
	add("ECC", d.ECC)
	add("MIG", d.MIG.Mode)
	if d.Utilisation != nil {
		add("busy", fmt.Sprintf("%d %%", *d.Utilisation))
	}
	return strings.Join(all, " · ")
}

// stale reports whether a card was last seen too long ago to be called attached.
func stale(d planner.Device, now time.Time) bool { return now.Sub(d.SeenAt) > time.Minute }

// figureText is a measured quantity with its unit.
func figureText(u unit, f planner.Figure) string {
	if f.Unit == "bytes" {
		b := units.Bytes(f.Value)
		if b < 10*units.MiB && b > -10*units.MiB {
			return b.String()
		}
		return u.number(b) + " " + u.String()
	}
	return strings.TrimSpace(fmt.Sprintf("%.4g %s", f.Value, f.Unit))
}

// secondsLeft is what is left of a benchmark, in words.
func secondsLeft(b planner.Benchmark) string {
	if b.State.Ended() || b.Progress.SecondsLeft <= 0 {
		return ""
	}
	return fmt.Sprintf("about %s left", (time.Duration(b.Progress.SecondsLeft) * time.Second).String())
}

// stateText is a benchmark's state for people.
func stateText(b planner.Benchmark) string {
	if b.Stopping {
		return "stopping"
	}
	return string(b.State)
}

// liveOf is where the rest of a benchmark comes from while it has not ended.
func liveOf(c chrome, b planner.Benchmark) string {
	if b.State.Ended() {
		return ""
	}
	return inUnit("/benchmarks/"+b.ID+"/live", c.Unit)
}
