package check

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Parts of a check, in the order in which they are told.
const (
	PartLog        = "log"
	PartIndex      = "index"
	PartReferences = "references"
	PartObjects    = "objects"
	PartDisk       = "disk"
)

var parts = []string{PartLog, PartIndex, PartReferences, PartObjects, PartDisk}

// Finding is something that is not as it should be.
type Finding struct {
	Part    string `json:"part"`
	What    string `json:"what"` // a repository, a folder, an event
	Problem string `json:"problem"`
	// Mend says what --repair would do, or has done; empty: it cannot be mended from the log.
	Mend   string `json:"mend,omitempty"`
	Mended bool   `json:"mended"`
	// Failed is why it could not be mended.
	Failed string `json:"failed,omitempty"`
}

// Report is what came of a check.
type Report struct {
	Events       int       `json:"events"` // of the log
	Indexes      int       `json:"indexes"`
	Repositories int       `json:"repositories"`
	Findings     []Finding `json:"findings"`
	Notes        []string  `json:"notes"` // what is no finding: what was not looked at, and why; what is kept

	mu    sync.Mutex
	found map[string]int // by part and problem
}

// maxFindings bounds how many findings of one kind are told; the others are counted.
const maxFindings = 100

func (r *Report) add(f Finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.few(f.Part+" "+kindOf(f.Problem)) || f.Failed != "" {
		r.Findings = append(r.Findings, f)
	}
}

// few counts a finding or note of a kind, and reports whether it is told.
func (r *Report) few(kind string) bool {
	if r.found == nil {
		r.found = map[string]int{}
	}
	r.found[kind]++
	return r.found[kind] <= maxFindings
}

// numbers are what differs between problems of one kind: ids and counts.
var numbers = regexp.MustCompile(`[0-9a-f]{8,}|[0-9]+`)

// kindOf is the beginning of a problem, without ids and counts.
func kindOf(problem string) string {
	kind := []rune(numbers.ReplaceAllString(problem[:min(len(problem), 200)], "…"))
	return string(kind[:min(len(kind), 20)])
}

func (r *Report) note(text string) { r.noteSome(text, text) }

// noteSome is note, for what there may be many of.
func (r *Report) noteSome(kind, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.few(kind) {
		r.Notes = append(r.Notes, text)
	}
}

// finish puts the findings into their order.
func (r *Report) finish() {
	for kind, n := range r.found {
		if n > maxFindings {
			r.Notes = append(r.Notes, fmt.Sprintf("%d more like: %s", n-maxFindings, kind))
		}
	}
	slices.Sort(r.Notes)
	slices.SortFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(slices.Index(parts, a.Part), slices.Index(parts, b.Part)), cmp.Compare(a.What, b.What), cmp.Compare(a.Problem, b.Problem))
	})
}

// Clean reports whether nothing is left that is not as it should be.
func (r *Report) Clean() bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return !f.Mended })
}

// Write tells it to people, in colours where they see them.
func (r *Report) Write(out io.Writer, colours bool) {
	paint := func(colour int, text string) string {
		if !colours {
			return text
		}
		return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colour, text)
	}
	const red, green, yellow = 31, 32, 33
	fmt.Fprintf(out, "%s in the log, %s, %s were looked at\n", Count(r.Events, "event", "events"), Count(r.Indexes, "index", "indexes"),
		Count(r.Repositories, "repository", "repositories"))
	for _, note := range r.Notes {
		fmt.Fprintf(out, "%s: %s\n", paint(yellow, "note"), note)
	}
	mended, mendable := 0, 0
	for _, f := range r.Findings {
		colour, mend := red, ""
		switch {
		case f.Mended:
			mended++
			colour, mend = green, " (mended: "+f.Mend+")"
		case f.Failed != "":
			mend = " (could not be mended: " + f.Failed + ")"
		case f.Mend != "":
			mendable++
			mend = " (--repair: " + f.Mend + ")"
		}
		fmt.Fprintf(out, "%s: %s: %s%s\n", paint(colour, f.Part), f.What, f.Problem, mend)
	}
	n := len(r.Findings)
	switch {
	case n == 0:
		fmt.Fprintln(out, paint(green, "clean"))
	case r.Clean():
		fmt.Fprintf(out, "%s, all mended\n", Count(n, "finding", "findings"))
	default:
		var left []string
		for _, part := range []struct {
			n    int
			what string
		}{{mended, "mended"}, {mendable, "can be mended by --repair"}, {n - mended - mendable, "only by hand"}} {
			if part.n > 0 {
				left = append(left, fmt.Sprintf("%d %s", part.n, part.what))
			}
		}
		fmt.Fprintf(out, "%s: %s\n", Count(n, "finding", "findings"), strings.Join(left, ", "))
	}
}

// Count is a number of things, in words: "1 event", "2 events".
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
