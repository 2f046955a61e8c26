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
	profileDir  = flag.String("profiles", "", "folder for CPU profiles of the measured process, one for each row that syncs")
	window      = flag.Duration("window", time.Second, "NGIT_SYNC_BATCH_WINDOW_MS of the measured process; 5s by default in production")
	profileSecs = flag.Int("profile-seconds", 8, "length of these profiles")
	factor      = flag.Int("factor", 10, "how many times the everyday size the row tenfold measures")
	withPulls   = flag.Bool("pulls", false, "every third root is a pull request, which needs git data")
)

// row is one or more lines of the table that are measured together. Each stands in a file of its
// own.
type row struct {
	name        string // for -rows
	onlyIfNamed bool   // not among all rows: it takes long
	measure     func(t *testing.T, s *stage)
}

// rows are in the order in which they run: what leaves a synced Tendril behind comes before what
// asks for one.
var rows = []row{
	{"cold", false, coldSync}, {"request", false, requests}, {"daily", false, dailySync}, {"many", false, manyRelays},
	{"live", false, liveLatency}, {"growth", false, growth}, {"scale", false, scale}, {"apart", false, servicesApart}, {"tenfold", true, tenfold}, {"git", false, gitBeside},
	{"gateway", true, gatewayStart}, {"replicas", true, manyReplicas},
}

// line is one line of the table.
type line struct{ what, measured, target, limit string }

// TestTable measures what the project promises to do at its limit, and prints it beside what it
// should be and beside what the machine can do at all at that moment.
func TestTable(t *testing.T) {
	if !*printTable {
		t.Skip("measures for minutes: make bench-table")
	}
	var known, wanted []string
	for _, r := range rows {
		if known = append(known, r.name); !r.onlyIfNamed {
			wanted = append(wanted, r.name)
		}
	}
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
	fmt.Fprintf(w, "\n| what\t measured\t target\t limit beside it\t\n| ---\t ---\t ---\t ---\t\n")
	for _, l := range lines {
		fmt.Fprintf(w, "| %s\t %s\t %s\t %s\t\n", l.what, l.measured, l.target, l.limit)
	}
}

// add adds a line to the table.
func (s *stage) add(what, measured, target, limit string) {
	s.lines = append(s.lines, line{what, measured, target, limit})
	s.say("%s: %s (target: %s)", what, measured, target)
}

// say tells whoever waits how far it is.
func (s *stage) say(format string, args ...any) {
	fmt.Printf("%s %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}
