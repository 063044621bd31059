package jobfile

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"memplan/internal/estimator/spec"
)

// textOf is how a plain value is written in a choice.
func textOf(v any) string { return fmt.Sprint(v) }

// differing lists the paths of settings that one job has and another lacks or
// has otherwise, sorted. What is not set is not looked at.
func differing(job, other spec.Job) []string {
	a, b := settingsOf(job), settingsOf(other)
	var paths []string
	for path, v := range a {
		if !reflect.DeepEqual(v, b[path]) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// Settings lists the paths of what a job says, sorted.
func Settings(job spec.Job) []string { return sorted(settingsOf(job)) }

// Value is what a job says at one of its Settings, in words.
func Value(job spec.Job, path string) string {
	v := settingsOf(job)[path]
	if list, ok := v.([]any); ok {
		words := make([]string, len(list))
		for i, x := range list {
			words[i] = textOf(x)
		}
		return strings.Join(words, ", ")
	}
	if n, ok := v.(float64); ok {
		return strconv.FormatFloat(n, 'f', -1, 64)
	}
	return textOf(v)
}

// settingsOf flattens a job to the paths of the public format. The free
// contents of a model's configuration are one value.
func settingsOf(job spec.Job) map[string]any {
	text, err := json.Marshal(job)
	if err != nil {
		panic(err) // a job is plain data
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		panic(err)
	}
	delete(tree, "version")
	flat := map[string]any{}
	flatten(flat, "", tree)
	for _, set := range []string{"training.fused_kernels", "parallelism.offload"} {
		if names, ok := flat[set].([]any); ok {
			slices.SortFunc(names, func(a, b any) int { return strings.Compare(textOf(a), textOf(b)) })
		}
	}
	return flat
}

// longForm is the key that a setting written short stands for.
var longForm = map[string]string{
	"training.optimizer": "name", "training.quantization": "type", "training.activation_checkpointing": "mode",
	"training.attention": "kernel", "training.loss": "kind",
}

func flatten(flat map[string]any, path string, v any) {
	m, ok := v.(map[string]any)
	if !ok || path == "model.config" || path == "model.architecture" || path == "model.graph" || path == "labels" {
		if key, short := longForm[path]; short {
			path += "." + key
		}
		flat[path] = v
		return
	}
	for k, x := range m {
		if path == "" {
			flatten(flat, k, x)
			continue
		}
		flatten(flat, path+"."+k, x)
	}
}
