package bench

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

var (
	printTable  = flag.Bool("table", false, "measure the built program and print the table; docs/performance.md explains it")
	onlyRows    = flag.String("rows", "", "rows of the table, comma-separated; empty: all")
	eventCount  = flag.Int("events", 100_000, "events of the large sets, about")
	profileDir  = flag.String("profiles", "", "folder for a CPU and a heap profile of the measured process, of each row that syncs")
	profileSecs = flag.Int("profile-seconds", 8, "length of the CPU profiles")
)

// row is one or more lines of the table that are measured together.
type row struct {
	name    string // for -rows
	measure func(t *testing.T, s *stage)
}

// rows run in this order: a row that leaves a synced Tendril behind comes before those that use it.
var rows = []row{
	{"cold", coldSync}, {"request", requests}, {"restart", restart}, {"daily", dailySync}, {"many", manyRelays},
	{"live", liveLatency}, {"scale", scale}, {"spread", oddAmongMany}, {"field", field}, {"field3", fieldOfThree}, {"apart", servicesApart}, {"git", gitBeside},
}

// line is one line of the table.
type line struct{ what, measured, target, limit string }

// TestTable measures the program at its limit. It prints each figure beside its floor
// (docs/performance.md) and beside what the machine can do at that moment.
func TestTable(t *testing.T) {
	if !*printTable {
		t.Skip("measures for minutes: make bench-table")
	}
	var known []string
	for _, r := range rows {
		known = append(known, r.name)
	}
	wanted := known
	if *onlyRows != "" {
		wanted = strings.Split(*onlyRows, ",")
	}
	for _, name := range wanted {
		if !slices.Contains(known, name) {
			t.Fatalf("no row is named %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	s := newStage(t)
	var lines []line
	for _, r := range rows {
		if !slices.Contains(wanted, r.name) {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			s.limits = measureLimits(t)
			s.say("%s: %s", r.name, s.limits)
			r.measure(t, s)
		})
		lines = append(lines, s.lines...)
		s.lines = nil
		show(lines) // what is there, if a later row takes too long
	}
}

// show prints the table.
func show(lines []line) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', tabwriter.Debug)
	defer w.Flush()
	fmt.Fprintf(w, "\n| what\t measured\t floor\t limit beside it\t\n| ---\t ---\t ---\t ---\t\n")
	for _, l := range lines {
		fmt.Fprintf(w, "| %s\t %s\t %s\t %s\t\n", l.what, l.measured, l.target, l.limit)
	}
}

// add adds a line to the table.
func (s *stage) add(what, measured, target, limit string) {
	s.lines = append(s.lines, line{what, measured, target, limit})
	s.say("%s: %s (floor: %s)", what, measured, target)
}

// say prints progress.
func (s *stage) say(format string, args ...any) {
	fmt.Printf("%s %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}
