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

	"golang.org/x/term"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/gitquery"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/subject"
	"tendril.dev/proto"
)

// repoCommand is what operators do about repositories.
type repoCommand struct {
	List    repoList    `cmd:"" help:"List all repositories: hosted, held (they wait for git data), and ended (not hosted any more, and when each is removed)."`
	Show    repoShow    `cmd:"" help:"Show one repository: its state, size and events."`
	Restore repoRestore `cmd:"" help:"Cancel the removal of a repository that its owner gave up: its git data is kept. It is served again only when its owner announces it again."`
	Remove  repoRemove  `cmd:"" help:"Remove repositories that are not hosted any more now, before their time is over. This cannot be undone."`
}

type oneRepo struct {
	Repo     repoName `arg:"" name:"repository" help:"npub1…/identifier, its address (https://… or nostr://…), naddr1… or 30617:<pubkey>:<identifier>."`
	busFlags `embed:""`
}

type repoList struct {
	Text     repoText        `arg:"" optional:"" help:"Only those whose npub1…/identifier has this text, or that this names: an owner or a repository in any form."`
	State    proto.RepoState `enum:"hosted,held,ended," default:"" placeholder:"STATE" help:"Only those that are hosted, held or ended."`
	Owner    personKey       `placeholder:"NPUB" help:"Only those of this owner: npub1…, nprofile1… or 64 hex digits."`
	Sort     string          `enum:"name,size,push,since" default:"name" help:"By name, or the largest, the last push or the longest wait first: name, size, push, since."`
	busFlags `embed:""`
}

type (
	repoShow    struct{ oneRepo }
	repoRestore struct{ oneRepo }
)

type repoRemove struct {
	Repos    []repoName `arg:"" name:"repository" help:"npub1…/identifier, its address (https://… or nostr://…), naddr1… or 30617:<pubkey>:<identifier>."`
	Yes      bool       `short:"y" help:"Do not ask for confirmation. Without it the command asks, if it runs on a terminal and without --json."`
	busFlags `embed:""`
}

// repoName is a repository on the command line.
type repoName struct{ nostr.RepoRef }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *repoName) UnmarshalText(text []byte) error {
	named, err := subject.Parse(string(text))
	ref, isRepository := named.Ref()
	if err != nil || !isRepository {
		return fmt.Errorf("%.200q is no repository: want npub1…/identifier, its address, naddr1… or "+
			"30617:<pubkey>:<identifier>", text)
	}
	r.RepoRef = ref
	return nil
}

// repoText chooses repositories on the command line: a part of npub1…/identifier.
type repoText string

// UnmarshalText implements encoding.TextUnmarshaler. An owner or a repository in another form is
// taken as npub1… or npub1…/identifier.
func (t *repoText) UnmarshalText(text []byte) error {
	var owner personKey
	*t = repoText(text)
	if owner.UnmarshalText(text) == nil {
		*t = repoText(owner.npub())
	} else if named, err := subject.Parse(string(text)); err == nil && named.Kind == subject.Repository {
		*t = repoText(named.String())
	}
	return nil
}

// nameRepo is how people write a repository.
func nameRepo(ref string) string {
	parsed, err := nostr.ParseRepoRef(ref)
	if err != nil {
		return ref
	}
	return parsed.Name()
}

// named names a repository as every command prints it, for machines too.
func named(s proto.RepoStatus) proto.RepoStatus {
	s.Ref = nameRepo(s.Ref)
	return s
}

const (
	// shardWait is how long a question waits for a worker that holds the shard: one is free while it
	// is handed over.
	shardWait = 3 * time.Second
	// removeTime is how long a removal may take: it also removes the events of the repository.
	removeTime = 6 * time.Minute
)

// workers are asked about repositories.
func (r *reader) workers() gitquery.Client { return gitquery.Client{Conn: r.Conn, Patience: shardWait} }

// Run implements the command.
func (c *repoList) Run() error {
	return c.do(c.Wait, func(r *reader) error {
		list, err := r.workers().List(r.ctx)
		for n := range list {
			list[n] = named(list[n])
		}
		list = c.choose(list)
		return errors.Join(c.print(list, func(w io.Writer) { writeRepos(w, list, time.Now()) }), err)
	})
}

// choose leaves out what is not asked for, and sorts the rest.
func (c *repoList) choose(list []proto.RepoStatus) []proto.RepoStatus {
	list = slices.DeleteFunc(list, func(s proto.RepoStatus) bool {
		name := nameRepo(s.Ref)
		return c.State != "" && s.State != c.State || !strings.Contains(name, string(c.Text)) ||
			!strings.HasPrefix(name, c.Owner.npub())
	})
	by := map[string]func(a, b proto.RepoStatus) int{
		"name":  func(a, b proto.RepoStatus) int { return 0 },
		"size":  func(a, b proto.RepoStatus) int { return cmp.Compare(b.Bytes, a.Bytes) },
		"push":  func(a, b proto.RepoStatus) int { return b.Changed.Compare(a.Changed) },
		"since": func(a, b proto.RepoStatus) int { return a.Since.Compare(b.Since) },
	}[c.Sort]
	slices.SortFunc(list, func(a, b proto.RepoStatus) int {
		return cmp.Or(by(a, b), strings.Compare(nameRepo(a.Ref), nameRepo(b.Ref)))
	})
	return list
}

// shownRepo is a repository with its address, who speaks for it, and its branches and tags, as many
// as are shown.
type shownRepo struct {
	proto.RepoStatus
	URL             string                `json:"url,omitempty"`
	Maintainers     []string              `json:"maintainers,omitempty"` // confirmed, npubs
	Invited         []string              `json:"invited,omitempty"`     // without rights, npubs
	Head            string                `json:"head,omitempty"`
	BranchesAndTags []proto.RepoReference `json:"branches_and_tags,omitempty"`
	More            bool                  `json:"more,omitempty"` // branches and tags
}

// mostShown bounds the branches and tags that are shown.
const mostShown = 100

// Run implements the command.
func (c *repoShow) Run() error {
	return c.do(c.Wait, func(r *reader) error {
		s, err := r.show(c.Repo.RepoRef)
		if err != nil {
			return err
		}
		s.RepoStatus = named(s.RepoStatus)
		return c.print(s, func(w io.Writer) { writeRepo(w, s, time.Now()) })
	})
}

func (r *reader) show(ref nostr.RepoRef) (s shownRepo, err error) {
	progress, err := r.Conn.SubscribeSync(proto.SubjectProgress)
	if err != nil {
		return s, fmt.Errorf("listen to the processes: %w", err)
	}
	defer progress.Unsubscribe()
	if s.RepoStatus, err = r.workers().Show(r.ctx, ref); err != nil || s.Damage != "" {
		return s, err
	}
	t := &teller{reader: &reader{Bus: r.Bus, ctx: r.ctx}} // all else is shown also where ingest does not answer
	if all := t.announcements(ref.Identifier); all.By(ref.PubKey) != nil {
		group := authority.Of(all, ref.PubKey)
		s.Maintainers, s.Invited = npubs(group.Confirmed), npubs(group.Invited)
	}
	s.URL = homeIn(progress) + nostr.RepositoryURLPath(nostr.Npub(ref.PubKey), ref.Identifier)
	for page, err := range r.workers().References(r.ctx, ref) {
		if err != nil {
			return s, err
		}
		s.Head, s.More = page.Head, page.More
		s.BranchesAndTags = append(s.BranchesAndTags, page.References...)
		if len(s.BranchesAndTags) > mostShown {
			s.BranchesAndTags, s.More = s.BranchesAndTags[:mostShown], true
			break
		}
	}
	return s, nil
}

// npubs are keys as people write them.
func npubs(keys []string) (list []string) {
	for _, key := range keys {
		list = append(list, nostr.Npub(key))
	}
	return list
}

// Run implements the command.
func (c *repoRestore) Run() error {
	return c.one(gitquery.Client.Restore, c.Wait, c.Repo, func(w io.Writer, s proto.RepoStatus) {
		format := "%s is kept until its owner announces it again, or `tendril repo remove` removes it\n"
		if s.State == proto.RepoHosted {
			format = "%s is hosted: there is nothing to restore\n"
		}
		fmt.Fprintf(w, format, nameRepo(s.Ref))
	})
}

// Run implements the command. What can be removed is, also when something else cannot.
func (c *repoRemove) Run() (failed error) {
	asks := !c.Yes && !c.JSON && term.IsTerminal(int(os.Stdin.Fd()))
	answers := bufio.NewScanner(os.Stdin)
	for _, repo := range c.Repos {
		if asks && !confirmed(answers, os.Stderr, nameRepo(repo.String())) {
			failed = errors.Join(failed, fmt.Errorf("%s is not removed", nameRepo(repo.String())))
			continue
		}
		failed = errors.Join(failed, c.one(gitquery.Client.Remove, removeTime, repo, func(w io.Writer, s proto.RepoStatus) {
			fmt.Fprintf(w, "%s is removed (references: %d), with the events that only it needed\n", nameRepo(s.Ref),
				s.References)
		}))
	}
	return failed
}

// confirmed asks whether to remove a repository.
func confirmed(answers *bufio.Scanner, out io.Writer, name string) bool {
	fmt.Fprintf(out, "Remove %s now? This cannot be undone. [y/N] ", printable(name))
	answers.Scan()
	answer := strings.ToLower(strings.TrimSpace(answers.Text()))
	return answer == "y" || answer == "yes"
}

// question asks about one repository.
type question func(gitquery.Client, context.Context, nostr.RepoRef) (proto.RepoStatus, error)

// one asks about one repository and prints the answer.
func (c *busFlags) one(ask question, wait time.Duration, name repoName, text func(io.Writer, proto.RepoStatus)) error {
	return c.do(wait, func(r *reader) error {
		s, err := ask(r.workers(), r.ctx, name.RepoRef)
		if err != nil {
			return err
		}
		s = named(s)
		return c.print(s, func(w io.Writer) { text(w, s) })
	})
}

// writeRepos writes repositories for people, a line each.
func writeRepos(w io.Writer, list []proto.RepoStatus, now time.Time) {
	if len(list) == 0 {
		fmt.Fprintln(w, "no repositories")
	}
	table(w, "REPOSITORY|STATE|SIZE|REFS|LAST PUSH|SINCE|UNTIL", list, func(s proto.RepoStatus) []any {
		until := "-"
		switch s.State {
		case proto.RepoHeld:
			until = clock(s.Until)
		case proto.RepoEnded:
			until = removal(s, now) + ": " + whyEnded(s)
		}
		return []any{nameRepo(s.Ref), cmp.Or(s.State, "unknown"), size(s.Bytes), s.References, s.Changed, s.Since, until}
	})
}

// writeRepo writes all about one repository for people.
func writeRepo(w io.Writer, s shownRepo, now time.Time) {
	state := "not hosted: " + whyEnded(s.RepoStatus) + "; removed: " + removal(s.RepoStatus, now)
	switch s.State {
	case proto.RepoHosted:
		state = "hosted"
	case proto.RepoHeld:
		state = "held: it waits for git data until " + clock(s.Until)
	}
	rows := [][]any{
		{"repository", nameRepo(s.Ref)},
		{"address", cmp.Or(s.URL, "-")},
		{"state", state},
		{"since", s.Since},
		{"announcement", cmp.Or(s.Announcement, "-")},
		{"references", cmp.Or(s.Damage, fmt.Sprint(s.References))},
		{"last push", s.Changed},
		{"git objects", size(s.Bytes)},
		{"events", fmt.Sprintf("%d name it; %d states of the identifier", s.Events, s.States)},
	}
	if s.NoAuthority != "" {
		rows = append(rows, []any{"authority", s.NoAuthority})
	}
	rows = append(rows, namedPeople("maintainers", s.Maintainers)...)
	rows = append(rows, namedPeople("invited", s.Invited)...)
	for _, r := range s.BranchesAndTags {
		name, head := strings.TrimPrefix(r.Name, "refs/"), ""
		if r.Name == s.Head {
			head = " (HEAD)"
		}
		rows = append(rows, []any{name, r.Object + head})
	}
	if s.More {
		rows = append(rows, []any{"more", "git ls-remote shows all branches and tags"})
	}
	table(w, "", rows, cells)
}

// namedPeople are rows that name people, a few of them.
func namedPeople(what string, names []string) (rows [][]any) {
	for n, name := range names {
		if n == mostTold {
			return append(rows, []any{what, fmt.Sprintf("and %d more", len(names)-n)})
		}
		rows = append(rows, []any{what, name})
	}
	return rows
}

func whyEnded(s proto.RepoStatus) string {
	switch s.Reason {
	case "deleted":
		return "deleted by its owner"
	case "vanished":
		return "its owner has vanished (NIP-62)"
	case "banned":
		return "banned by an operator"
	case "moved":
		return "its owner's announcement does not list this service"
	}
	return cmp.Or(s.Reason, "it is not announced, and the log does not say that its owner gave it up")
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
