package web

import (
	"fmt"
	"slices"
	"strings"

	"memplan/internal/estimator"
	"memplan/internal/planner"
	"memplan/internal/units"
)

// mostSwitches is how many other values stand beside an assumption; the form
// has the rest.
const mostSwitches = 4

// change is another value that an assumption might have, one click away.
type change struct{ Text, Href string }

// deciding is the assumptions that move the answer.
func (a answer) deciding() []estimator.Assumption { return a.assumptions(true) }

// filledIn is the other defaults.
func (a answer) filledIn() []estimator.Assumption { return a.assumptions(false) }

func (a answer) assumptions(decide bool) []estimator.Assumption {
	var out []estimator.Assumption
	for _, x := range a.Assumptions {
		if x.Decides == decide {
			out = append(out, x)
		}
	}
	return out
}

// alternatives is what else a value could be, as far as the format lists it;
// and the engine has rules for it; else where to say it. A saved estimate is read-only and has none.
func (a answer) alternatives(x estimator.Assumption) []change {
	if a.ID != "" || x.Path == "model.implementation" { // which goes with the model
		return nil
	}
	choices := choicesOf(x.Path)
	if len(choices) == 0 && isField(controlPath(x.Path)) {
		return []change{{Text: "say another", Href: "#" + idOf(controlPath(x.Path))}}
	}
	var out []change
	for _, v := range choices {
		if len(out) < mostSwitches && !strings.EqualFold(v, choiceText(x.Value)) && !unmodelled()[choice{x.Path, v}] {
			out = append(out, change{Text: yesNo(v), Href: a.with(x.Path, v)})
		}
	}
	return out
}

// effect says how the answer would move with another value of an assumption.
func (a answer) effect(x estimator.Assumption) string {
	other := planner.Rival(x)
	if x.Effect == 0 || other == "" {
		return ""
	}
	return other + ": " + a.Unit.signed(x.Effect)
}

// choiceText prints an assumed value as the format spells it.
func choiceText(v any) string { return formText(v) }

// patched is the address with a patch applied.
func (s state) patched(patch []planner.Change) string {
	s.Values = cloneValues(s.canonical())
	for _, c := range patch {
		for _, name := range spellings(c.Path) {
			s.Values.Del(name)
		}
		for key := range s.Values { // what stands below goes with it
			if strings.HasPrefix(key, c.Path+".") {
				s.Values.Del(key)
			}
		}
		if c.To != nil {
			s.Values.Set(nameOf(c.Path), formText(c.To))
		}
	}
	return "/plan?" + encodeQuery(s.Values, s.Unit)
}

// fixed prints a size in a column of two decimals.
func (a answer) fixed(b units.Bytes) string {
	_, total := a.Unit.column([]units.Bytes{b})
	return total
}

// momentCells prints one moment by category, adding up to its total.
func (a answer) momentCells(m estimator.Moment, layers []string) (cells []string, total string) {
	sizes := make([]units.Bytes, len(layers))
	for i, c := range layers {
		sizes[i] = m.ByCategory.Of(c)
	}
	return a.Unit.column(sizes)
}

// onCard is the planner's address with a card and its largest micro batch.
func (s state) onCard(f planner.Fit) string {
	v := cloneValues(s.canonical())
	for path, value := range map[string]string{"target.gpu": f.GPU, "training.micro_batch_size": fmt.Sprint(f.MicroBatch)} {
		for _, name := range spellings(path) {
			v.Del(name)
		}
		v.Set(nameOf(path), value)
	}
	return "/plan?" + encodeQuery(v, s.Unit)
}

func fitName(f planner.Fit) string {
	if f.Name != "" {
		return f.Name
	}
	return f.GPU
}

func fitBatch(f planner.Fit) string {
	if f.AtLeast {
		return "≥ " + group(int64(f.MicroBatch))
	}
	return group(int64(f.MicroBatch))
}

// fitProblem is why a job cannot run on a card.
func fitProblem(f planner.Fit) string { return explainFields(f.Err) }

// cards is whose largest micro batch the table shows: this job's own first,
// then the usual ones.
func (s state) cards(own string) []string {
	cards := []string{own}
	for _, c := range usualCards {
		if c != own {
			cards = append(cards, c)
		}
	}
	return slices.DeleteFunc(cards, func(c string) bool { return c == "" })
}

// usualCards is what is rented and owned most, from small to large.
var usualCards = []string{
	"T4", "L4", "A10G", "RTX-4090", "V100-SXM2-32GB", "RTX-5090", "A100-SXM4-40GB", "L40S",
	"A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB", "B200", "MI300X",
}
