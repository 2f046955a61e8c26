package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestUseIsCounted(t *testing.T) {
	t.Parallel()
	components := map[string]string{"ingest-a": "ingest", "ingest-b": "ingest", "nats-0": "nats"}
	uses := map[string]*use{}
	for _, text := range []string{
		`{"pods":[{"podRef":{"name":"ingest-a","namespace":"t"},"cpu":{"usageCoreNanoSeconds":1e9},"memory":{"workingSetBytes":104857600}},
			{"podRef":{"name":"ingest-a","namespace":"other"},"cpu":{"usageCoreNanoSeconds":9e9},"memory":{"workingSetBytes":1e12}}]}`,
		`{"pods":[{"podRef":{"name":"ingest-a","namespace":"t"},"cpu":{"usageCoreNanoSeconds":3e9},"memory":{"workingSetBytes":52428800}},
			{"podRef":{"name":"ingest-b","namespace":"t"},"cpu":{"usageCoreNanoSeconds":5e9},"memory":{"workingSetBytes":1048576}},
			{"podRef":{"name":"nats-0","namespace":"t"},"cpu":{},"memory":{"workingSetBytes":2097152}}]}`,
		`{"pods":[{"podRef":{"name":"ingest-b","namespace":"t"},"cpu":{"usageCoreNanoSeconds":5.5e9},"memory":{"workingSetBytes":1048576}}]}`,
	} {
		var s stats
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		count(uses, s, "t", components)
	}
	u := usage{uses: uses, stop: func() {}}
	table := sizesTable("idle", 90*time.Second, u.end())
	for _, want := range []string{"idle (1m30s)", "| ingest | 2 | 100 MiB | 1 MiB | 2.5 |", "| nats | 1 | 2 MiB | 2 MiB | 0.0 |"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table has no %q:\n%s", want, table)
		}
	}
	if strings.Contains(table, "gateway") {
		t.Errorf("the table has a line of pods that were not seen:\n%s", table)
	}
}
