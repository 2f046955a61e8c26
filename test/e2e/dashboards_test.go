package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tendril.dev/test/fixture"
)

const deploy = "../../deploy/"

// query is one of a dashboard or of an alert.
type query struct{ from, expr string }

var (
	comparison = regexp.MustCompile(` (<|>|==) [0-9.]+$`)
	ruleExpr   = regexp.MustCompile(`(?ms)^ +expr: (?:>-\n)?(.*?)\n +for:`)
	selector   = regexp.MustCompile(`\b((?:ngit|tendril|purgatory|process|go)_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	matcher    = regexp.MustCompile(`(\w+)(=~|!=|=)"([^"]*)"`)
)

// queries are those of all dashboards, and what the alerts compare: in a healthy run an alert itself
// returns nothing.
func queries(t *testing.T) (all []query) {
	t.Helper()
	files, err := filepath.Glob(deploy + "grafana/*.json")
	fixture.Must(t, err)
	for _, file := range files {
		var dashboard struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		fixture.Must(t, json.Unmarshal([]byte(readFile(t, file)), &dashboard))
		for _, panel := range dashboard.Panels {
			for _, target := range panel.Targets {
				expr := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
				all = append(all, query{filepath.Base(file) + ", " + panel.Title, expr})
			}
		}
	}
	alerts := ruleExpr.FindAllStringSubmatch(readFile(t, deploy+"prometheus/rules.yaml"), -1)
	for _, alert := range alerts {
		for part := range strings.SplitSeq(strings.Join(strings.Fields(alert[1]), " "), " and ") {
			all = append(all, query{"rules.yaml", comparison.ReplaceAllString(part, "")})
		}
	}
	if len(files) < 5 || len(alerts) < 10 || len(all) < 80 {
		t.Fatalf("%d queries of %d dashboards and %d alerts", len(all), len(files), len(alerts))
	}
	return all
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	fixture.Must(t, err)
	return string(text)
}

// unanswered are the queries that name a metric, or a label of it with a value, that is not among
// those of a run.
func unanswered(all []query, run map[string][]series) (wrong []string) {
	for _, q := range all {
		for _, named := range selector.FindAllStringSubmatch(q.expr, -1) {
			name := named[1]
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base := strings.TrimSuffix(name, suffix); run[base] != nil {
					name = base
				}
			}
			if !slices.ContainsFunc(run[name], func(s series) bool { return selects(named[2], s.labels) }) {
				wrong = append(wrong, fmt.Sprintf("%s: no %s in this run", q.from, named[0]))
			}
		}
	}
	return wrong
}

// selects reports whether a selector's matchers hold for a series.
func selects(matchers string, labels map[string]string) bool {
	for _, m := range matcher.FindAllStringSubmatch(matchers, -1) {
		value, is := labels[m[1]]
		switch m[2] {
		case "=":
			is = is && value == m[3]
		case "!=":
			is = is && value != m[3]
		default:
			is = is && regexp.MustCompile("^(?:"+m[3]+")$").MatchString(value)
		}
		if !is {
			return false
		}
	}
	return true
}

var sample = regexp.MustCompile(`(?m)^([a-z_0-9]+)(?:\{(.*)\})? (\S+)$`)

// askPromtool has promtool evaluate every query over the scrapes of a run, which it takes as made
// one a minute. A query that returns nothing fails.
func askPromtool(t *testing.T, promtool string, all []query, scrapes []string) {
	t.Helper()
	values := map[string][]string{}
	for n, scrape := range scrapes {
		for _, m := range sample.FindAllStringSubmatch(scrape, -1) {
			labels := `instance="tendril"`
			if m[2] != "" {
				labels = m[2] + "," + labels
			}
			if value, err := strconv.ParseFloat(m[3], 64); err == nil {
				key := m[1] + "{" + labels + "}"
				for len(values[key]) < n {
					values[key] = append(values[key], "_")
				}
				values[key] = append(values[key], strconv.FormatFloat(value, 'f', -1, 64))
			}
		}
	}
	type object = map[string]any
	var input, tests []object
	for _, name := range slices.Sorted(maps.Keys(values)) {
		input = append(input, object{"series": name, "values": strings.Join(values[name], " ")})
	}
	for _, q := range all {
		tests = append(tests, object{"expr": "count(" + q.expr + ") > bool 0", "eval_time": fmt.Sprintf("%dm", len(scrapes)-1),
			"exp_samples": []object{{"labels": "{}", "value": 1}}})
	}
	file, err := json.Marshal(object{"evaluation_interval": "1m", "tests": []object{{"interval": "1m", "input_series": input, "promql_expr_test": tests}}})
	fixture.Must(t, err)
	path := filepath.Join(t.TempDir(), "queries.yaml") // what is JSON is YAML
	fixture.Must(t, os.WriteFile(path, file, 0o600))
	if said, err := exec.Command(promtool, "test", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v: %s", err, said)
	}
	t.Logf("promtool has evaluated %d queries over %d series", len(tests), len(input))
}
