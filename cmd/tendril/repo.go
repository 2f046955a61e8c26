package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"
	"golang.org/x/term"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// repoCommand is what operators do about repositories.
type repoCommand struct {
	List    repoList    `cmd:"" help:"List all repositories: hosted, held (they wait for git data), and ended (not hosted any more, and when each is removed)."`
	Show    repoShow    `cmd:"" help:"Show one repository: its state, size and events."`
	Restore repoRestore `cmd:"" help:"Cancel the removal of a repository that its owner gave up: its git data is kept. It is served again only when its owner announces it again."`
	Remove  repoRemove  `cmd:"" help:"Remove repositories that are not hosted any more now, before their time is over. This cannot be undone."`
}

// removeTime is how long a removal may take: it also removes the events of the repository.
const removeTime = 6 * time.Minute

type oneRepo struct {
	Repo repoName `arg:"" name:"repository" help:"npub1…/identifier, naddr1… or 30617:<pubkey>:<identifier>."`
	asks `embed:""`
}

type repoList struct {
	Text  string          `arg:"" optional:"" help:"Only those whose npub1…/identifier has this text."`
	State proto.RepoState `enum:"hosted,held,ended," default:"" placeholder:"STATE" help:"Only those that are hosted, held or ended."`
	Owner string          `placeholder:"NPUB" help:"Only those of this owner."`
	Sort  string          `enum:"name,size,refs,push,since" default:"name" help:"By name, or the largest, the most references, the last push or the longest wait first: name, size, refs, push, since."`
	asks  `embed:""`
}

type (
	repoShow    struct{ oneRepo }
	repoRestore struct{ oneRepo }
)

type repoRemove struct {
	Repos []repoName `arg:"" name:"repository" help:"npub1…/identifier, naddr1… or 30617:<pubkey>:<identifier>."`
	Yes   bool       `short:"y" help:"Do not ask for confirmation. Without it the command asks, if it runs on a terminal and without --json."`
	asks  `embed:""`
}

// repoName is a repository on the command line.
type repoName struct{ nostr.RepoRef }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *repoName) UnmarshalText(text []byte) (err error) {
	r.RepoRef, err = parseRepo(string(text))
	return err
}

// Run implements the command.
func (c *repoList) Run(k *kong.Kong) error {
	return c.do("repo", "", c.Wait, func(ctx context.Context, b *bus.Bus) error {
		list, missing, err := listRepos(ctx, b)
		if err != nil {
			return err
		}
		list = c.choose(list)
		if err := c.print(k.Stdout, list, func(w io.Writer) error { return writeRepos(w, list, time.Now()) }); err != nil {
			return err
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d shards: %w; what lies there is not listed", missing, proto.Shards, errNoWorker)
		}
		return nil
	})
}

// choose leaves out what is not asked for, and sorts the rest.
func (c *repoList) choose(list []proto.RepoStatus) []proto.RepoStatus {
	list = slices.DeleteFunc(list, func(s proto.RepoStatus) bool {
		if c.State != "" && s.State != c.State {
			return true
		}
		if c.Text == "" && c.Owner == "" {
			return false
		}
		name := nameRepo(s.Ref)
		return !strings.Contains(name, c.Text) || c.Owner != "" && !strings.HasPrefix(name, c.Owner+"/")
	})
	by := map[string]func(a, b proto.RepoStatus) int{
		"size":  func(a, b proto.RepoStatus) int { return cmp.Compare(b.Bytes, a.Bytes) },
		"refs":  func(a, b proto.RepoStatus) int { return b.References - a.References },
		"push":  func(a, b proto.RepoStatus) int { return b.Changed.Compare(a.Changed) },
		"since": func(a, b proto.RepoStatus) int { return a.Since.Compare(b.Since) },
	}[c.Sort]
	slices.SortFunc(list, func(a, b proto.RepoStatus) int {
		if by != nil {
			if order := by(a, b); order != 0 {
				return order
			}
		}
		return strings.Compare(a.Ref, b.Ref)
	})
	return list
}

// Run implements the command.
func (c *repoShow) Run(k *kong.Kong) error {
	return c.one(k.Stdout, proto.RepoShow, c.Repo, func(w io.Writer, s proto.RepoStatus) error { return writeRepo(w, s, time.Now()) })
}

// Run implements the command.
func (c *repoRestore) Run(k *kong.Kong) error {
	return c.one(k.Stdout, proto.RepoRestore, c.Repo, func(w io.Writer, s proto.RepoStatus) error {
		format := "%s is kept until its owner announces it again, or `tendril repo remove` removes it\n"
		if s.State == proto.RepoHosted {
			format = "%s is hosted: there is nothing to restore\n"
		}
		_, err := fmt.Fprintf(w, format, shown(s.Ref))
		return err
	})
}

// Run implements the command. What can be removed is, also when something else cannot.
func (c *repoRemove) Run(k *kong.Kong) (failed error) {
	asks := !c.Yes && !c.JSON && term.IsTerminal(int(os.Stdin.Fd()))
	answers := bufio.NewScanner(os.Stdin)
	for _, name := range c.Repos {
		if asks {
			if err := c.confirm(answers, k.Stderr, name); err != nil {
				failed = errors.Join(failed, err)
				continue
			}
		}
		failed = errors.Join(failed, c.one(k.Stdout, proto.RepoRemove, name, func(w io.Writer, s proto.RepoStatus) error {
			_, err := fmt.Fprintf(w, "%s is removed (references: %d), with what only it needed of the events and of the shared git objects\n", shown(s.Ref), s.References)
			return err
		}))
	}
	return failed
}

// confirm shows a repository and asks whether to remove it. Of one that is hosted, the worker says
// why it cannot be.
func (c *repoRemove) confirm(answers *bufio.Scanner, out io.Writer, name repoName) error {
	hosted := false
	err := c.one(out, proto.RepoShow, name, func(w io.Writer, s proto.RepoStatus) error {
		hosted = s.State == proto.RepoHosted
		return writeRepo(w, s, time.Now())
	})
	if hosted || err != nil {
		return err
	}
	return confirmed(answers, out, name)
}

// confirmed asks, and gives an error unless the answer is yes.
func confirmed(answers *bufio.Scanner, out io.Writer, name repoName) error {
	fmt.Fprint(out, "Remove it now? This cannot be undone. [y/N] ")
	if !answers.Scan() && answers.Err() != nil {
		return fmt.Errorf("read the answer: %w", answers.Err())
	}
	switch strings.ToLower(strings.TrimSpace(answers.Text())) {
	case "y", "yes":
		return nil
	}
	return fmt.Errorf("%s is not removed", shown(name.String()))
}

// one asks for one repository and prints the answer.
func (c *asks) one(out io.Writer, verb proto.RepoVerb, name repoName, text func(io.Writer, proto.RepoStatus) error) error {
	wait := c.Wait
	if verb == proto.RepoRemove {
		wait = removeTime
	}
	return c.do("repo", "", wait, func(ctx context.Context, b *bus.Bus) error {
		answer, err := askRepo(ctx, b, verb, name.RepoRef)
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("no answer within %s; what was asked for may be done all the same: %w", wait, err)
		}
		if err != nil {
			return err
		}
		return c.print(out, answer, func(w io.Writer) error { return text(w, answer) })
	})
}

// shown is how a repository is printed.
func shown(ref string) string { return printable(nameRepo(ref)) }

// writeRepos writes repositories for people, a line each.
func writeRepos(w io.Writer, list []proto.RepoStatus, now time.Time) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no repositories")
		return err
	}
	return table(w, "REPOSITORY|STATE|SIZE|REFS|LAST PUSH|SINCE|UNTIL", len(list), func(i int) []any {
		s := list[i]
		until := "-"
		switch s.State {
		case proto.RepoHeld:
			until = clock(s.Until)
		case proto.RepoEnded:
			until = removal(s, now) + ": " + whyEnded(s)
		}
		return []any{shown(s.Ref), cmp.Or(string(s.State), "unknown"), humanize.IBytes(uint64(max(s.Bytes, 0))), s.References, clock(s.Changed), clock(s.Since), until}
	})
}

// writeRepo writes all about one repository for people.
func writeRepo(w io.Writer, s proto.RepoStatus, now time.Time) error {
	var b strings.Builder
	line := func(name, format string, values ...any) {
		fmt.Fprintf(&b, "%-13s "+format+"\n", append([]any{name}, values...)...)
	}
	line("repository", "%s", shown(s.Ref))
	line("address", "%s", printable(s.Ref))
	switch s.State {
	case proto.RepoHosted:
		line("state", "hosted")
	case proto.RepoHeld:
		line("state", "held: it waits for git data until %s", clock(s.Until))
	default:
		line("state", "not hosted: %s", whyEnded(s))
		line("since", "%s", clock(s.Since))
		line("removed", "%s", removal(s, now))
	}
	if s.Announcement != "" {
		line("announcement", "%s", printable(s.Announcement))
	}
	if s.Damage == "" {
		line("references", "%d", s.References)
	} else {
		line("references", "cannot be read: %s", printable(s.Damage))
	}
	if !s.Changed.IsZero() {
		line("last push", "%s", clock(s.Changed))
	}
	line("git objects", "%s", humanize.IBytes(uint64(max(s.Bytes, 0))))
	line("events", "%d name it; %d states of the identifier", s.Events, s.States)
	for _, other := range s.Beside {
		line("beside it", "%s", shown(other))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func whyEnded(s proto.RepoStatus) string {
	switch s.Reason {
	case "deleted":
		return "deleted by its owner"
	case "banned":
		return "banned by an operator"
	case "moved":
		return "its owner's announcement does not list this service"
	case "":
		return "it is not announced, and the log does not say that its owner gave it up"
	}
	return printable(s.Reason)
}

// removal says when a repository is removed.
func removal(s proto.RepoStatus, now time.Time) string {
	switch {
	case s.Kept:
		return "never: cancelled by an operator"
	case s.Until.IsZero():
		return "never"
	case s.Until.Before(now):
		return "now"
	}
	return clock(s.Until) + ", in " + s.Until.Sub(now).Round(time.Second).String()
}
