package estimator

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// plainMoment is a Moment without a way of its own to write itself.
type plainMoment struct {
	Event      int              `json:"event"`
	Phase      string           `json:"phase"`
	Part       string           `json:"part"`
	Module     string           `json:"module"`
	Allocated  int64            `json:"allocated_bytes"`
	Reserved   int64            `json:"reserved_bytes"`
	ByCategory map[string]int64 `json:"by_category"`
}

func TestTimelineIsWrittenAsReflectionWould(t *testing.T) {
	line := Timeline{
		{Event: 3, Phase: "first_step", Part: "forward", Module: "model.layers.0.mlp", Allocated: 7, Reserved: 9, ByCategory: ByCategory{{"activations", 5}, {"parameters", 2}}},
		{Event: 4, Phase: "steady_step", Module: "odd \"name\" \\ é\n<", ByCategory: ByCategory{}},
	}
	plain := []plainMoment{
		{3, "first_step", "forward", "model.layers.0.mlp", 7, 9, map[string]int64{"activations": 5, "parameters": 2}},
		{4, "steady_step", "", "odd \"name\" \\ é\n<", 0, 0, map[string]int64{}},
	}
	got, err := json.Marshal(line)
	require.NoError(t, err)
	want, err := json.Marshal(plain)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
	var back Timeline
	require.NoError(t, json.Unmarshal(got, &back))
	require.Equal(t, line, back)
	none, err := json.Marshal(Timeline(nil))
	require.NoError(t, err)
	require.Equal(t, "[]", string(none))
}
