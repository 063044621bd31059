package planner

import (
	"cmp"
	"context"
	"slices"
	"time"

	"memplan/internal/fault"
	"memplan/internal/units"
)

// Devices lists the cards of this host. It fails with fault.Unavailable, and a
// sentence that says why, where there is no driver to ask.
type Devices interface {
	List(ctx context.Context) ([]Device, error)
}

// Device is an attached card as its driver describes it.
type Device struct {
	ID          string         `json:"id" doc:"The card's UUID."`
	Index       int            `json:"index" doc:"Its place on the host."`
	GPU         string         `json:"gpu,omitempty" doc:"Its key in the catalogue, where it is known."`
	Name        string         `json:"name" doc:"Its name as the driver gives it."`
	Driver      string         `json:"driver,omitempty"`
	CUDA        string         `json:"cuda,omitempty" doc:"The newest CUDA the driver runs."`
	Host        string         `json:"host"`
	Memory      DeviceMemory   `json:"memory"`
	MIG         MIG            `json:"mig"`
	ECC         string         `json:"ecc,omitempty" enum:"on,off" doc:"Absent where the card has none."`
	Utilisation *int           `json:"utilisation,omitempty" doc:"Percent of the last moment in which a kernel ran."`
	Processes   []Process      `json:"processes" doc:"What holds its memory."`
	Worker      string         `json:"worker,omitempty" doc:"The worker that takes benchmarks for it."`
	SeenAt      time.Time      `json:"seen_at"`
	Unsupported string         `json:"unsupported,omitempty" doc:"Why memplan cannot measure it, where it cannot."`
	Advice      []DeviceAdvice `json:"advice,omitempty" doc:"What stands out, and what to do about it."`
}

// DeviceMemory is a card's memory. Reserved is the driver's own part, which no
// process gets; it counts as neither used nor free.
type DeviceMemory struct {
	Total    units.Bytes `json:"total_bytes"`
	Used     units.Bytes `json:"used_bytes"`
	Free     units.Bytes `json:"free_bytes"`
	Reserved units.Bytes `json:"reserved_bytes,omitempty"`
}

// MIG is whether a card is cut into slices, and into which.
type MIG struct {
	Mode   string     `json:"mode,omitempty" enum:"on,off" doc:"Absent where the card cannot be cut."`
	Slices []MIGSlice `json:"slices,omitempty"`
}

// MIGSlice is one slice; its id may stand for a device.
type MIGSlice struct {
	ID     string       `json:"id"`
	Name   string       `json:"name"`
	Memory DeviceMemory `json:"memory"`
}

// Process is a process with memory on a card. Used is nil where the driver
// does not tell, as inside a container without the host's process ids.
type Process struct {
	PID   int          `json:"pid"`
	Name  string       `json:"name,omitempty"`
	Used  *units.Bytes `json:"used_bytes,omitempty"`
	Alive bool         `json:"alive" doc:"Whether a process of this id runs on the host, as far as can be seen."`
}

// DeviceAdvice is one thing that stands out about a card.
type DeviceAdvice struct {
	Code  string      `json:"code"`
	Text  string      `json:"text"`
	Bytes units.Bytes `json:"bytes,omitempty"`
}

// DeviceList is the known cards, and why this host shows none where it does not.
type DeviceList struct {
	Items  []Device `json:"items"`
	Next   string   `json:"next_cursor" doc:"Always empty: all devices are listed at once."`
	Driver string   `json:"driver_note,omitempty" doc:"Why no card of the answering host is listed."`
}

// forgotten is how long a card of another host is listed after it was last seen.
const forgotten = 24 * time.Hour

// ListDevices returns the cards of this host as they are now, and those that
// workers on other hosts told of. A host without a driver is no failure.
func (p *Planner) ListDevices(ctx context.Context) (DeviceList, error) {
	list := DeviceList{Items: []Device{}}
	here, err := p.attached(ctx)
	switch {
	case fault.KindOf(err) == fault.Unavailable:
		list.Driver = userText(err)
	case err != nil:
		return list, err
	}
	if p.store != nil {
		told, err := p.store.ListDevices(ctx)
		if err != nil {
			return list, err
		}
		list.Items = merged(here, told, p.now().Add(-forgotten))
	} else {
		list.Items = append(list.Items, here...)
	}
	slices.SortStableFunc(list.Items, func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Index, b.Index))
	})
	return list, nil
}

// userText is the sentence of a classified error that is meant for users.
func userText(err error) string {
	var e *fault.Error
	if ok := asFault(err, &e); ok && e.Text != "" {
		return e.Text
	}
	return "the driver does not answer"
}

// attached reads the cards of this host, with their catalogue keys and advice.
func (p *Planner) attached(ctx context.Context) ([]Device, error) {
	if p.devices == nil {
		return nil, fault.New(fault.Unavailable, "this service does not look for cards of its own host")
	}
	all, err := p.devices.List(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		d := &all[i]
		d.SeenAt = p.now().UTC().Truncate(time.Microsecond)
		if g, err := p.catalog.GPU(d.Name); err == nil {
			d.GPU = g.Key
		}
		if d.Processes == nil {
			d.Processes = []Process{}
		}
		d.Advice = advise(*d)
	}
	return all, nil
}

// merged is here and what was told of other cards since a time. What a worker
// of this host told adds its name.
func merged(here, told []Device, since time.Time) []Device {
	out := append([]Device{}, here...)
	for _, t := range told {
		i := slices.IndexFunc(here, func(d Device) bool { return d.ID == t.ID })
		switch {
		case i >= 0:
			out[i].Worker = t.Worker
		case t.SeenAt.After(since):
			out = append(out, t)
		}
	}
	return out
}

// driverShare is what a driver may hold on an idle card beyond its processes'
// memory: page tables, the display, and what it counts late.
const driverShare = units.GiB

// advise names what stands out: memory that no living process answers for.
func advise(d Device) []DeviceAdvice {
	if d.MIG.Mode == "on" || d.Unsupported != "" {
		return nil // a cut card counts by slice
	}
	var counted, dead units.Bytes
	for _, x := range d.Processes {
		if x.Used == nil {
			return nil // not everything is known
		}
		counted += *x.Used
		if !x.Alive {
			dead += *x.Used
		}
	}
	var out []DeviceAdvice
	if dead > 0 {
		out = append(out, DeviceAdvice{Code: "dead_process", Bytes: dead, Text: "A process that is not seen on this host holds memory. " +
			"It may live in another container: stop it there. Where it has died, its memory returns when its last child ends: look for them with fuser -v /dev/nvidia*."})
	}
	if rest := d.Memory.Used - counted; rest > driverShare {
		out = append(out, DeviceAdvice{Code: "unaccounted_memory", Bytes: rest, Text: "No listed process accounts for this memory. " +
			"Often a killed job's child still runs: look with fuser -v /dev/nvidia*, and end it. If nothing shows, nvidia-smi --gpu-reset frees a card that nobody uses."})
	}
	return out
}

// deviceByID finds a card, or a slice of one, among those that are known.
func (p *Planner) deviceByID(ctx context.Context, id string) (Device, error) {
	list, err := p.ListDevices(ctx)
	if err != nil {
		return Device{}, err
	}
	return findDevice(list.Items, id)
}

// findDevice is the card of an id; of a slice's id, the card as that slice.
func findDevice(all []Device, id string) (Device, error) {
	var known []string
	for _, d := range all {
		if d.ID == id {
			return d, nil
		}
		known = append(known, d.ID)
		for _, s := range d.MIG.Slices {
			if s.ID == id {
				d.ID, d.Name, d.Memory, d.MIG = s.ID, d.Name+" MIG "+s.Name, s.Memory, MIG{}
				return d, nil
			}
		}
	}
	want := "the id of an attached card; none is known"
	nearest := ""
	if len(known) > 0 {
		want, nearest = "the id of an attached card, from GET /api/v1/devices", known[0]
	}
	var wrong fault.Fields
	wrong.Add("device", id, want, nearest)
	return Device{}, wrong
}

// TellDevices writes down the cards of this host for the other processes of the
// service, under the name of the worker that serves them, and returns them.
func (p *Planner) TellDevices(ctx context.Context, worker string) ([]Device, error) {
	here, err := p.attached(ctx)
	if err != nil {
		return nil, err
	}
	for i := range here {
		here[i].Worker = worker
	}
	if p.store == nil {
		return here, nil
	}
	return here, p.store.SaveDevices(ctx, here)
}
