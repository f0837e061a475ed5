package promsource

import (
	"encoding/json"
	"math"
	"strconv"
)

// row is one series of an instant vector.
type row struct {
	labels map[string]string
	value  float64
}

// answer is what /api/v1/query sends,
// https://prometheus.io/docs/prometheus/latest/querying/api/
type answer struct {
	Status    string   `json:"status"`
	ErrorType string   `json:"errorType"`
	Error     string   `json:"error"`
	Warnings  []string `json:"warnings"`
	IsPartial bool     `json:"isPartial"` // of VictoriaMetrics
	Data      struct {
		ResultType string          `json:"resultType"`
		Result     json.RawMessage `json:"result"`
	} `json:"data"`
}

type sample struct {
	Metric    map[string]string `json:"metric"`
	Value     []json.RawMessage `json:"value"` // time, number as a string
	Histogram json.RawMessage   `json:"histogram"`
}

// maxValue bounds numbers of requests, so that sums of them stay exact enough.
const maxValue = 1e15

// parse reads an answer with status code.
func parse(status int, body []byte) ([]row, error) {
	var a answer
	err := json.Unmarshal(body, &a)
	switch {
	case status != 200 && err != nil:
		return nil, &APIError{Status: status, Message: shorten(string(body))}
	case err != nil:
		return nil, badAnswer("%s", shorten(err.Error()))
	case status != 200 || a.Status == "error":
		return nil, &APIError{Status: status, Type: shorten(a.ErrorType), Message: shorten(a.Error)}
	case a.Status != "success":
		return nil, badAnswer("status %q, want success", shorten(a.Status))
	case len(a.Warnings) > 0 || a.IsPartial:
		e := &PartialError{Warnings: a.Warnings[:min(len(a.Warnings), 5)]}
		for i, w := range e.Warnings {
			e.Warnings[i] = shorten(w)
		}
		if a.IsPartial {
			e.Warnings = append(e.Warnings, "it is partial")
		}
		return nil, e
	case a.Data.ResultType != "vector":
		return nil, badAnswer("result type %q, want vector", shorten(a.Data.ResultType))
	}
	var samples []sample
	if err := json.Unmarshal(a.Data.Result, &samples); err != nil {
		return nil, badAnswer("%s", shorten(err.Error()))
	}
	if len(samples) > MaxSeries {
		return nil, badAnswer("%d series, want at most %d", len(samples), MaxSeries)
	}
	rows := make([]row, len(samples))
	for i, s := range samples {
		v, err := number(s)
		if err != nil {
			return nil, err
		}
		rows[i] = row{s.Metric, v}
	}
	return rows, nil
}

func number(s sample) (float64, error) {
	var text string
	if len(s.Histogram) > 0 {
		return 0, badAnswer("a native histogram, want a number")
	}
	if len(s.Value) != 2 || json.Unmarshal(s.Value[1], &text) != nil {
		return 0, badAnswer("a sample that is not a time and a number")
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || v < 0 || v > maxValue {
		return 0, badAnswer("the value %q, want a number of requests", shorten(text))
	}
	return v, nil
}
