package jobfile

import (
	"slices"
	"strings"

	"memplan/internal/estimator/spec"
)

// rule ties keys of a tool's file to settings of a job, in both directions.
// write leaves out what the job does not say or the tool cannot.
type rule struct {
	paths []string // the settings, by their paths in the public format
	write func(s *Subject, d *document)
	read  func(in *source, j *spec.Job)
}

// whole ties a whole number; 0 is not set.
func whole(key, path string, at func(*spec.Job) *int) rule {
	return rule{
		paths: []string{path},
		write: func(s *Subject, d *document) {
			if n := *at(&s.Job); n != 0 {
				d.set(key, n)
			}
		},
		read: func(in *source, j *spec.Job) {
			if n, ok := in.whole(key); ok {
				*at(j) = n
			}
		},
	}
}

// real ties a number; 0 is not set.
func real(key, path string, at func(*spec.Job) *float64) rule {
	return rule{
		paths: []string{path},
		write: func(s *Subject, d *document) {
			if x := *at(&s.Job); x != 0 {
				d.set(key, x)
			}
		},
		read: func(in *source, j *spec.Job) {
			if x, ok := in.number(key); ok {
				*at(j) = x
			}
		},
	}
}

// text ties a text; the empty one is not set.
func text(key, path string, at func(*spec.Job) *string) rule {
	return rule{
		paths: []string{path},
		write: func(s *Subject, d *document) {
			if w := *at(&s.Job); w != "" {
				d.set(key, w)
			}
		},
		read: func(in *source, j *spec.Job) {
			if w, ok := in.word(key); ok {
				*at(j) = w
			}
		},
	}
}

// flag ties a switch. It is written only where it is on.
func flag(key, path string, at func(*spec.Job) *bool) rule {
	return rule{
		paths: []string{path},
		write: func(s *Subject, d *document) {
			if *at(&s.Job) {
				d.set(key, true)
			}
		},
		read: func(in *source, j *spec.Job) {
			if on, ok := in.flag(key); ok {
				*at(j) = on
			}
		},
	}
}

// choice is a value of a job and the tool's word for it.
type choice[T any] struct {
	ours   T
	theirs any
}

// choose ties a value from a list. One of ours that is not on it is not
// written; one of theirs that is not on it is refused.
func choose[T comparable](key, path string, at func(*spec.Job) *T, choices ...choice[T]) rule {
	return rule{
		paths: []string{path},
		write: func(s *Subject, d *document) {
			for _, c := range choices {
				if c.ours == *at(&s.Job) {
					d.set(key, c.theirs)
					return
				}
			}
		},
		read: func(in *source, j *spec.Job) {
			v, ok := in.word(key)
			if !ok {
				return
			}
			var want []string
			for _, c := range choices {
				word := textOf(c.theirs)
				if strings.EqualFold(word, v) {
					*at(j) = c.ours
					return
				}
				want = append(want, word)
			}
			in.refuse(key, v, "one of "+strings.Join(slices.Compact(want), ", "))
		},
	}
}

// custom ties keys to settings by two functions of its own.
func custom(write func(s *Subject, d *document), read func(in *source, j *spec.Job), paths ...string) rule {
	return rule{paths: paths, write: write, read: read}
}

// renamed reads a key that has another name by now.
func renamed(old, key string) rule {
	return custom(func(*Subject, *document) {}, func(in *source, _ *spec.Job) {
		if v, ok := in.value(old); ok {
			if _, newer := in.get(key); !newer {
				in.set(key, v)
			}
		}
	})
}

// Settings that many tools have.

func microBatch(key string) rule {
	return whole(key, "training.micro_batch_size", func(j *spec.Job) *int { return &j.Training.MicroBatchSize })
}

func accumulation(key string) rule {
	return whole(key, "training.gradient_accumulation_steps", func(j *spec.Job) *int { return &j.Training.GradAccumSteps })
}

func sequenceLength(key string) rule {
	return whole(key, "training.sequence_length", func(j *spec.Job) *int { return &j.Training.SequenceLength })
}

func modelID(key string) rule {
	return text(key, "model.id", func(j *spec.Job) *string { return &j.Model.ID })
}

func compile(key string) rule {
	return flag(key, "training.compile", func(j *spec.Job) *bool { return &j.Training.Compile })
}

// clipping ties the largest gradient norm; 0 is no clipping.
func clipping(key string, off any) rule {
	return custom(
		func(s *Subject, d *document) {
			switch c := s.Job.Training.GradClipping; {
			case c == nil:
			case *c:
				d.set(key, 1.0)
			default:
				d.set(key, off)
			}
		},
		func(in *source, j *spec.Job) {
			if v, ok := in.get(key); ok && v == off {
				in.used[key] = true
				j.Training.GradClipping = new(bool)
				return
			}
			if x, ok := in.number(key); ok {
				on := x > 0
				j.Training.GradClipping = &on
			}
		}, "training.gradient_clipping")
}

// gpus ties the number of ranks to a count of GPUs.
func gpus(key string) rule {
	return custom(
		func(s *Subject, d *document) { d.set(key, ranks(s.Job)) },
		func(in *source, j *spec.Job) {
			if n, ok := in.whole(key); ok {
				j.Target.Count = n
			}
		}, "target.count")
}

func ranks(j spec.Job) int { return max(j.Parallelism.Ranks(), j.Target.Count, 1) }

// adapter returns the job's adapter, made when absent.
func adapter(j *spec.Job) *spec.Adapter {
	if j.Training.Adapter == nil {
		j.Training.Adapter = new(spec.Adapter)
	}
	return j.Training.Adapter
}

// ifAdapter writes a rule only where an adapter is trained, so that the rules
// of adapters need not look.
func ifAdapter(r rule) rule {
	write := r.write
	r.write = func(s *Subject, d *document) {
		if s.Job.Training.Adapter != nil {
			write(s, d)
		}
	}
	return r
}

// loraNumbers are rank, alpha and dropout of an adapter.
func loraNumbers(rank, alpha, dropout string) []rule {
	return []rule{
		ifAdapter(whole(rank, "training.adapter.rank", func(j *spec.Job) *int { return &adapter(j).Rank })),
		ifAdapter(real(alpha, "training.adapter.alpha", func(j *spec.Job) *float64 { return &adapter(j).Alpha })),
		ifAdapter(real(dropout, "training.adapter.dropout", func(j *spec.Job) *float64 { return &adapter(j).Dropout })),
	}
}

// targets ties the modules an adapter sits on; all is the tool's word for
// every linear layer.
func targets(key, all string) rule {
	return ifAdapter(custom(
		func(s *Subject, d *document) {
			switch t := s.Job.Training.Adapter.TargetModules; {
			case t.AllLinear && all != "":
				d.set(key, all)
			case len(t.Names) > 0:
				d.set(key, list(t.Names))
			}
		},
		func(in *source, j *spec.Job) {
			names, ok := in.words(key)
			switch {
			case !ok:
			case all != "" && len(names) == 1 && names[0] == all:
				adapter(j).TargetModules = spec.Targets{AllLinear: true}
			default:
				adapter(j).TargetModules = spec.Targets{Names: names}
			}
		}, "training.adapter.target_modules"))
}

// trainedWhole ties the modules trained beside an adapter.
func trainedWhole(key string) rule {
	return ifAdapter(custom(
		func(s *Subject, d *document) {
			if m := s.Job.Training.Adapter.ModulesToSave; len(m) > 0 {
				d.set(key, list(m))
			}
		},
		func(in *source, j *spec.Job) {
			if m, ok := in.words(key); ok {
				adapter(j).ModulesToSave = m
			}
		}, "training.adapter.modules_to_save"))
}
