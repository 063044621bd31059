package step

import (
	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/units"
)

// Phase is a stretch of the run that has a peak of its own.
type Phase int32

// The phases every run has come first.
const (
	Load Phase = iota
	FirstStep
	SteadyStep
	// The phases a job asks for, in the order in which they are run here.
	Evaluation
	Generation
	CheckpointSave
	Phases // their number
)

var phaseNames = [...]string{"load", "first_step", "steady_step", "evaluation", "generation", "checkpoint_save"}

// String is the phase's public name.
func (p Phase) String() string { return phaseNames[p] }

// Part is a stretch of a step.
type Part int32

// The parts of a step; Whole is a phase without parts.
const (
	Whole Part = iota
	ForwardPart
	LossPart
	BackwardPart
	OptimizerPart
)

var partNames = [...]string{"", "forward", "loss", "backward", "optimizer"}

// String is the part's public name.
func (p Part) String() string { return partNames[p] }

// markBase separates phase and part in a mark's code.
const markBase = 16

// MarkCode is the code of the mark that ends a part of a phase.
func MarkCode(ph Phase, pt Part) int32 { return int32(ph)*markBase + int32(pt) }

// ReadMark takes a mark's code apart.
func ReadMark(code int32) (Phase, Part) { return Phase(code / markBase), Part(code % markBase) }

// steadySteps is how many steady steps are run at most; the allocator stops
// earlier when its state repeats.
const steadySteps = 3

// Plan is a job as a program for the allocator, with what is needed to explain
// its events.
type Plan struct {
	Program   allocator.Program
	Machine   *graph.Machine
	Network   *model.Network
	Total     int64 // parameters of the model as published, adapters left out
	Trainable int64
	PerRank   int64 // of the parameters, what one rank keeps; of shards, adapters included
	Uneven    bool  // other ranks keep less
	Host      int64 // bytes kept in host memory because the job puts them there
	Doubts    []Doubt
}

// Doubt is something that the answer does not count to the byte, and by how much
// that may be off.
type Doubt struct {
	Code, Path, Text string
	Bytes            units.Bytes // at stake, 0 where it is not known
	// Error is the least relative error of the engine that the doubt leaves, 0 for
	// none of note.
	Error float64
}

// Compile runs the job symbolically on a card. The job must be resolved, its
// model given by a config. It fails with fault.Fields where the config is
// wrong or a setting is not known to the engine.
func Compile(job spec.Job, device graph.Device) (*Plan, error) { return CompileIn(nil, job, device) }

// CompileIn is Compile in memory that is kept from one job to the next. The
// plan is good until the memory is used again.
func CompileIn(memory *graph.Memory, job spec.Job, device graph.Device) (*Plan, error) {
	return CompileWhile(memory, job, device, nil)
}

// CompileWhile is CompileIn that shows the program up to the end of the first
// step to goOn, and gives up where that is false: there is no plan then, and no
// error. A nil goOn is always true.
func CompileWhile(memory *graph.Memory, job spec.Job, device graph.Device, goOn func(first allocator.Program) bool) (*Plan, error) {
	return CompileStage(memory, job, device, 0, goOn)
}

// CompileStage is CompileWhile for the ranks of one stage of the job's
// pipeline, counted from 0.
func CompileStage(memory *graph.Memory, job spec.Job, device graph.Device, stage int, goOn func(first allocator.Program) bool) (*Plan, error) {
	plan, err := compile(memory, job, device, stage, fewLayers, goOn)
	if err == nil && plan != nil && plan.Machine.Inexact() {
		return compile(memory, job, device, stage, everyLayer, goOn)
	}
	return plan, err
}

// Stages is how many stages the pipeline of a resolved job has: the kinds of
// its ranks.
func Stages(job *spec.Job) int { return max(1, job.Parallelism.Pipeline) }

// CompileEveryLayer is Compile with every layer of the model, every micro batch
// and every step run, where Compile runs a few and copies or repeats the rest:
// the same program, more slowly.
func CompileEveryLayer(job spec.Job, device graph.Device) (*Plan, error) {
	return compile(nil, job, device, 0, everything, nil)
}

// extent is how much of what repeats is run.
type extent uint8

const (
	fewLayers  extent = iota // of long rows
	everyLayer               // once
	everything               // as often as it is to run
)

func compile(memory *graph.Memory, job spec.Job, device graph.Device, stage int, runs extent, goOn func(first allocator.Program) bool) (plan *Plan, err error) {
	if model.IsGraph(job.Model) {
		defer refuseGraph(&err)
	}
	r, err := newRun(memory, job, device, stage)
	if err != nil {
		return nil, err
	}
	r.repeats = runs != everything
	if runs != fewLayers || r.wantsEveryLayer() {
		r.M.RunEveryLayer()
	}
	r.load()
	if l := job.Training.SequenceLengths; l != nil {
		r.Job.Training.SequenceLength = batchLength(l, job.Training.MicroBatchSize, 0.5)
	}
	r.step(FirstStep)
	if goOn != nil && !r.M.Inexact() && !goOn(r.program) {
		r.M.Close()
		return nil, nil
	}
	r.steady()
	r.afterSteps()
	r.doubtGraph()
	r.M.Close()
	return &Plan{
		Program: r.program, Machine: r.M, Network: r.Net, Total: r.total, Trainable: r.trainable, PerRank: r.perRank(),
		Uneven: r.shards != nil && !r.shards.even(), Host: r.host(), Doubts: r.doubts,
	}, nil
}

// wantsEveryLayer reports whether hooks want every layer's gradients.
func (r *Run) wantsEveryLayer() bool {
	return newDDP(r) != nil || r.shards != nil || r.engine != nil || r.megatron != nil || r.hooksGradients() || offloadsActivations(r.Job)
}

// hooksGradients reports whether the optimizer acts during backward.
func (r *Run) hooksGradients() bool {
	h, ok := r.Optimizer.(gradientHooked)
	return ok && h.hooksGradients()
}

// host is what the job keeps in host memory.
func (r *Run) host() (n int64) {
	if h, ok := r.Optimizer.(interface{ hostBytes(r *Run) int64 }); ok {
		n = h.hostBytes(r)
	}
	if r.engine != nil {
		n += r.engine.zero.host(r)
	}
	if r.ema != nil {
		n += r.ema.host
	}
	return n + r.M.Host
}

// doubt notes what the answer does not count to the byte.
func (r *Run) doubt(d Doubt) { r.doubts = append(r.doubts, d) }

// Run is one rank's training run while it is written down. Trainers,
// optimizers and hooks work on it.
type Run struct {
	Job   *spec.Job
	M     *graph.Machine
	Net   *model.Network
	Loop  *graph.Frame // the training script's frame; its names outlive a step
	Batch model.Batch  // of the micro batch in flight
	// Params are the trained parameters in the order the optimizer was given
	// them.
	Params []*graph.Param
	// ParamGroups are the optimizer's groups, where they are not one.
	ParamGroups [][]*graph.Param
	// Wide are the parameters an 8-bit optimizer keeps 32-bit states for.
	Wide      map[*graph.Param]bool
	Outputs   model.Outputs // held by the loop from one micro batch to the next
	Optimizer Stepper
	Scaler    gradScaler

	trainer   trainer
	quantized bool // the base is
	ddp       *ddp // nil on one rank
	shards    sharding
	engine    *deepSpeed // nil where there is none
	megatron  *megatron  // nil where another trainer runs
	stage     int        // of the pipeline
	gathered  func()     // ends the last gathering of objects
	// lastMicro is set during the micro batch whose gradients are exchanged.
	lastMicro bool
	phase     Phase
	repeats   bool // what is alike is written down once
	total     int64
	trainable int64
	program   allocator.Program
	parts     []allocator.Part
	doubts    []Doubt
	ema       *weightAverage
	// reference is the frozen model of a preference objective; nil where it is
	// the trained one with its adapters off, or none.
	reference   *model.Network
	adaptersOff bool
}

func newRun(memory *graph.Memory, job spec.Job, device graph.Device, stage int) (*Run, error) {
	switch {
	case job.Runtime.Trainer == "trl" && job.Training.Objective == "dpo":
		plainDropout(&job)
	case job.Training.DropoutDisabled:
		job.Model.Config = withoutDropout(job.Model.Config)
	}
	r := &Run{Job: &job, M: graph.NewMachineIn(memory, versionsOf(job.Runtime), device), stage: stage}
	fields := beyond(&job)
	t, ok := trainers()[job.Runtime.Trainer]
	if !ok {
		fields.Add("runtime.trainer", job.Runtime.Trainer, "one of "+names(trainers()), "plain")
	}
	family, config, err := model.For(job.Model)
	fields = append(fields, fault.FieldsOf(err)...)
	if len(fields) > 0 {
		return nil, fields
	}
	if err := r.build(family, config); err != nil {
		return nil, err
	}
	if err := beyondLoss(r).Err(); err != nil {
		return nil, err
	}
	if err := r.buildReference(family, config); err != nil {
		return nil, err
	}
	r.trainer = t()
	if _, ok := r.trainer.(*hfLoop); ok {
		r.ParamGroups, r.Wide = decayGroups(r), wideStates(r)
		if r.shards != nil { // the optimizer comes after the wrapper, and no flat parameter bears a norm's name
			r.ParamGroups = [][]*graph.Param{r.Params, nil}
		}
	}
	if r.megatron = newMegatron(r); r.megatron != nil {
		r.Optimizer = r.megatron
		r.megatron.doubts(r)
		return r, nil
	}
	r.engine = newDeepSpeed(r)
	if job.Training.Compile {
		r.doubt(compiled)
	}
	r.Optimizer, err = newOptimizer(r)
	return r, err
}

// build makes the module tree and rewrites it as the job asks.
func (r *Run) build(family *model.Family, config *model.Config) error {
	net, err := family.New(*config, buildOf(*r.Job, r.M.Versions, r.stage))
	if err != nil {
		return err
	}
	r.Net = net
	whole := net.Root
	if net.Stage != nil {
		build := buildOf(*r.Job, r.M.Versions, 0)
		build.Ranks = model.Ranks{Tensor: 1, Stages: 1}
		all, err := family.New(*config, build)
		if err != nil {
			return err
		}
		whole = all.Root
	}
	for _, p := range whole.Parameters() {
		r.total += p.Numel()
	}
	fuse(r)
	if err := quantize(r); err != nil {
		return err
	}
	if err := adapt(r, family); err != nil {
		return err
	}
	net.Root.Named("")
	synchroniseNorms(r)
	layOut(r)
	requireInputGrads(r)
	checkpoint(r)
	for _, p := range net.Root.Parameters() {
		if p.Trained {
			r.Params = append(r.Params, p)
			r.trainable += p.Numel()
		}
	}
	r.shards = newSharding(r)
	return nil
}

// load moves the model to the card.
func (r *Run) load() {
	r.loadBeside(func() {
		switch {
		case r.megatron != nil:
			r.megatron.load(r)
		case r.engine != nil:
			r.engine.zero.load(r)
		case r.shards != nil:
			r.shards.load(r)
		case r.quantized:
			loadQuantized(r)
		default:
			r.M.ToDevice(r.Net.Root)
		}
	})
	r.settle()
	if r.ddp = newDDP(r); r.ddp != nil {
		r.ddp.wrap(r)
	}
	if r.megatron != nil { // its optimizer is part of setting the model up
		r.megatron.construct(r)
	}
	r.Mark(Load, Whole)
	r.program = append(r.program, allocator.Part{Label: int32(Load), Events: r.M.Events()})
	r.Loop = r.M.Open()
	if o, ok := r.Optimizer.(constructing); ok {
		o.Construct(r)
	}
	r.trainer.begin(r)
}

// perRank is the number of parameters the rank keeps.
func (r *Run) perRank() int64 {
	switch {
	case r.megatron != nil:
		n := int64(0)
		for _, p := range r.Params {
			n += p.Numel()
		}
		return n
	case r.engine != nil:
		return r.engine.zero.numel()
	case r.shards != nil:
		return r.shards.numel()
	}
	return r.total
}

// step writes down one optimizer step. Micro batches that do the same, those
// after the first up to the last or the one before it, are written down once.
func (r *Run) step(ph Phase) {
	r.phase = ph
	r.parts = nil
	n := max(1, r.Job.Training.GradAccumSteps)
	if l, ok := r.trainer.(*megatronLoop); ok {
		l.run(r, n)
		n = 0
	}
	for i := 0; i < n; {
		r.lastMicro = i == n-1
		r.trainer.micro(r, i, n)
		events := r.M.Events()
		if alike := r.alike(i, n); alike > 1 {
			if carry, ok := r.M.Repeatable(allocator.Part{Events: events}); ok {
				r.add(events, alike, carry)
				i += alike
				continue
			}
		}
		r.add(events, 1, nil)
		i++
	}
	r.trainer.finish(r)
	r.add(r.M.Events(), 1, nil)
	r.program = append(r.program, allocator.Part{Label: int32(ph), Parts: r.parts})
}

// alike is how many micro batches, from the i-th of n on, are to do what it
// does: none knows that it is the last but for those who exchange gradients
// then.
func (r *Run) alike(i, n int) int {
	switch {
	case i == 0 || !r.repeats:
		return 1
	case r.ddp != nil || r.shards != nil || r.engine != nil:
		return n - 1 - i
	}
	return n - i
}

// steady writes down steady steps until one leaves the state it began in; that
// one stands for the rest. (Data parallelism lays its buckets anew in the
// second step, and ZeRO 3 knows the order of modules from there, so there it is
// the third.)
func (r *Run) steady() {
	if l := r.Job.Training.SequenceLengths; l != nil {
		r.varied(l)
		return
	}
	for left := steadySteps; left > 0; left-- {
		r.step(SteadyStep)
		last := &r.program[len(r.program)-1]
		if !r.repeats || r.engine != nil && !r.engine.zero.settled() {
			continue
		}
		if carry, ok := r.M.Repeatable(last.Parts...); ok {
			last.Repeat, last.Carry = left, carry
			r.M.Rename(carry)
			return
		}
	}
}

func (r *Run) add(events []allocator.Event, repeat int, carry []allocator.Carry) {
	r.parts = append(r.parts, allocator.Part{Label: int32(r.phase), Events: events, Repeat: repeat, Carry: carry})
	if carry != nil {
		r.M.Rename(carry)
	}
}

// Mark ends a part of a phase.
func (r *Run) Mark(ph Phase, pt Part) { r.M.Mark(MarkCode(ph, pt)) }

// End ends a part of the step in hand.
func (r *Run) End(pt Part) { r.Mark(r.phase, pt) }
