package repos

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"tendril.dev/cmd/tendril/status"

	"tendril.dev/proto"
)

// WriteList writes repositories for people, a line each.
func WriteList(w io.Writer, list []proto.RepoStatus, now time.Time) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no repository waits for its removal")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "REPOSITORY\tSINCE\tREMOVED\tWHY")
	for _, s := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", status.Shown(Name(s.Ref)), at(s.Since), end(s, now), why(s))
	}
	return t.Flush()
}

// WriteOne writes all about one repository for people.
func WriteOne(w io.Writer, s proto.RepoStatus, now time.Time) error {
	var b strings.Builder
	line := func(name, format string, values ...any) {
		fmt.Fprintf(&b, "%-13s "+format+"\n", append([]any{name}, values...)...)
	}
	line("repository", "%s", status.Shown(Name(s.Ref)))
	line("address", "%s", status.Shown(s.Ref))
	switch {
	case s.Hosted:
		line("state", "hosted")
	case s.Held:
		line("state", "held: it waits for git data")
	default:
		line("state", "not hosted: %s", why(s))
		line("since", "%s", at(s.Since))
		line("removed", "%s", end(s, now))
	}
	if s.Announcement != "" {
		line("announcement", "%s", status.Shown(s.Announcement))
	}
	if s.Damage == "" {
		line("references", "%d", s.References)
	} else {
		line("references", "cannot be read: %s", status.Shown(s.Damage))
	}
	line("git objects", "%s", size(s.Bytes))
	line("events", "%d name it; %d states of the identifier", s.Events, s.States)
	for _, other := range s.Beside {
		line("beside it", "%s", status.Shown(Name(other)))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func why(s proto.RepoStatus) string {
	switch {
	case s.Reason == "deleted":
		return "deleted by its owner"
	case s.Reason == "moved":
		return "its owner's announcement does not list this service"
	case s.Reason != "":
		return status.Shown(s.Reason)
	}
	return "it is not announced, and the log does not say that its owner gave it up"
}

func end(s proto.RepoStatus, now time.Time) string {
	switch {
	case s.Kept:
		return "never: cancelled by an operator"
	case s.Until.IsZero():
		return "never"
	case s.Until.Before(now):
		return "now"
	}
	left, unit := s.Until.Sub(now), time.Minute
	if left < 10*time.Minute {
		unit = time.Second
	}
	return fmt.Sprintf("%s, in %s", at(s.Until), left.Round(unit))
}

func at(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

func size(bytes int64) string { return status.Size(uint64(max(bytes, 0))) }
