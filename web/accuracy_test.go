package web_test

import (
	"encoding/csv"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/web"
	"memplan/web/webtest"
)

func TestAccuracyPage(t *testing.T) {
	p := open(t, &webtest.Planner{}, http.MethodGet, "/accuracy")
	require.Equal(t, http.StatusOK, p.Code)
	require.Contains(t, p.Body, "1 measured runs.")
	require.Len(t, p.all("svg.scatter circle"), 3, "a dot for each figure")
	require.Len(t, p.all("svg.scatter line.identity"), 1)
	require.Len(t, p.all("svg.scatter line.whisker"), 1, "the process has an interval")
	require.Contains(t, p.Body, "1 of 1", "said fits, ran out")
	require.Contains(t, p.Body, "at least 12 are needed", "why a fit is not offered")
	require.Len(t, p.all(`form[action=/calibrations/cal_aaaaaaaaaaaaaaaa/retire]`), 1)
	require.Empty(t, p.all(`form[action=/calibrations/cal_bbbbbbbbbbbbbbbb/activate]`))
	require.Contains(t, open(t, &webtest.Planner{}, http.MethodGet, "/accuracy?u=gb").Body, "25.8", "25 GiB in GB")
}

func TestAccuracyWithoutRunsSaysHowToGetThem(t *testing.T) {
	p := open(t, &webtest.Planner{}, http.MethodGet, "/accuracy?gpu=H100-SXM5-80GB")
	require.Equal(t, http.StatusOK, p.Code)
	require.Contains(t, p.Body, "memplan record")
	require.Contains(t, p.Body, "hf_callback")
	require.Empty(t, p.all("svg.scatter"))
}

func TestAccuracyCSV(t *testing.T) {
	p := open(t, &webtest.Planner{}, http.MethodGet, "/accuracy.csv?gpu=A100-SXM4-80GB")
	require.Equal(t, http.StatusOK, p.Code)
	require.Contains(t, p.Header.Get("Content-Type"), "text/csv")
	rows, err := csv.NewReader(strings.NewReader(p.Body)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 4)
	require.Equal(t, "measured_bytes", rows[0][5])
	require.Equal(t, "21474836480", rows[1][5])
	require.Equal(t, "'=gpt2", rows[1][2], "no spreadsheet runs it")
}

func TestCalibrationPage(t *testing.T) {
	p := open(t, &webtest.Planner{}, http.MethodGet, "/calibrations/cal_aaaaaaaaaaaaaaaa")
	require.Equal(t, http.StatusOK, p.Code)
	for _, want := range []string{"context", "1.00", "conv_workspace", "1.200 ± 0.100", "gpt2 hf none", "it lies wildly off", "+4.17"} {
		require.Contains(t, p.Body, want)
	}
	require.Equal(t, http.StatusNotFound, open(t, &webtest.Planner{}, http.MethodGet, "/calibrations/cal_nothere").Code)
}

func TestCalibrationIsPutInForce(t *testing.T) {
	site := web.New(web.Config{Planner: &webtest.Planner{}, Version: "0.1.0"})
	for _, test := range []struct {
		name, path string
		want       int
	}{
		{"activate", "/calibrations/cal_aaaaaaaaaaaaaaaa/activate", http.StatusSeeOther},
		{"retire", "/calibrations/cal_aaaaaaaaaaaaaaaa/retire", http.StatusSeeOther},
		{"not offered", "/calibrations/cal_bbbbbbbbbbbbbbbb/activate", http.StatusConflict},
		{"unknown", "/calibrations/cal_nothere/activate", http.StatusNotFound},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, serve(t, site, http.MethodPost, test.path, url.Values{}).Code)
		})
	}
	require.Equal(t, http.StatusForbidden, serve(t, site, http.MethodPost, "/calibrations/cal_aaaaaaaaaaaaaaaa/retire", url.Values{}, "Sec-Fetch-Site", "cross-site").Code)
}
