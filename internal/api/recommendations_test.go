package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/recommend"
)

const asksForSpeed = `{"job": {"model": {"id": "gpt2"}, "training": {"precision": "fp16-mixed", "sequence_length": 1024}, "target": {"gpu": "T4"}}, "goal": "fastest_step", "allow": ["training.micro_batch_size", "training.gradient_accumulation_steps", "training.activation_checkpointing"]}`

func TestCreateRecommendation(t *testing.T) {
	w := open(t, nil).ask(http.MethodPost, "/api/v1/recommendations", asksForSpeed)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	var answer recommend.Recommendation
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	require.Equal(t, recommend.FastestStep, answer.Goal)
	require.NotEmpty(t, answer.Options)
	for i, o := range answer.Options {
		require.Equal(t, i+1, o.Rank)
		require.Less(t, o.RelativeSpeed.Low, o.RelativeSpeed.High)
		require.NotNil(t, o.Estimate)
	}
	require.NotEmpty(t, answer.Singles)
	require.NotEmpty(t, answer.Largest)
	require.NotContains(t, w.Body.String(), `null,"costs"`)
}

func TestRecommendationsTellEveryWrongField(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		wrong      []string
	}{
		{"no job", `{"goal": "fastest_step"}`, []string{"job"}},
		{"goal and job", `{"goal": "fast", "job": {"model": {"id": "gpt2"}, "training": {"micro_batch_size": 0}}}`, []string{"goal", "job.training.micro_batch_size"}},
		{"what may change", `{"job": {"model": {"id": "gpt2"}}, "allow": ["model.id"], "gpus": ["no such card"]}`, []string{"allow.0", "gpus.0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, path := range []string{"/api/v1/recommendations", "/api/v1/recommendations/events"} {
				w := open(t, nil).ask(http.MethodPost, path, tt.body)
				text := w.Body.String()
				if _, data, streamed := strings.Cut(text, "event: problem\ndata: "); streamed {
					text = data // what only the search finds wrong comes as an event
				} else {
					require.Equal(t, http.StatusUnprocessableEntity, w.Code)
				}
				var p Problem
				require.NoError(t, json.Unmarshal([]byte(text), &p))
				var got []string
				for _, e := range p.Errors {
					got = append(got, e.Path)
				}
				require.ElementsMatch(t, tt.wrong, got, path)
			}
		})
	}
}

// Progress comes first, then the answer that is given without it.
func TestRecommendationsComeWithProgress(t *testing.T) {
	d := open(t, nil)
	w := d.ask(http.MethodPost, "/api/v1/recommendations/events", asksForSpeed)
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "text/event-stream", w.Header().Get("Content-Type"))
	events := strings.Split(strings.TrimSpace(w.Body.String()), "\n\n")
	require.Greater(t, len(events), 2)
	for _, e := range events[:len(events)-1] {
		require.True(t, strings.HasPrefix(e, "event: progress\ndata: {"), e)
	}
	name, data, _ := strings.Cut(events[len(events)-1], "\ndata: ")
	require.Equal(t, "event: answer", name)
	var streamed, whole recommend.Recommendation
	require.NoError(t, json.Unmarshal([]byte(data), &streamed))
	require.NoError(t, json.Unmarshal(d.ask(http.MethodPost, "/api/v1/recommendations", asksForSpeed).Body.Bytes(), &whole))
	require.Equal(t, whole.Options, streamed.Options)
}
