package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"time"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// banSubject is the subject of a ban on the command line.
type banSubject struct{ bans.Subject }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *banSubject) UnmarshalText(text []byte) (err error) {
	s.Subject, err = bans.Parse(string(text))
	return err
}

type (
	banCommand struct {
		What     []banSubject `arg:"" help:"An author (npub1…), a repository (npub1…/identifier, its address, naddr1…), an event (64 hex digits, note1…, nevent1…), identifier:NAME, the repositories of that name of every owner, a relay (wss://…, not synced from), host:NAME of a git server (nothing is fetched there), address:IP of clients, or kind:NUMBER of events."`
		Reason   string       `help:"What clients and git users are told."`
		Purge    bool         `help:"Remove what is stored when the grace period (NGIT_DELETION_GRACE) is over."`
		busFlags `embed:""`
	}
	unbanCommand struct {
		What     []banSubject `arg:"" help:"What was banned, as tendril bans or tendril ban name it."`
		busFlags `embed:""`
	}
	bansCommand    struct{ busFlags }
	reportsCommand struct{ busFlags }
)

// Run implements the command.
func (c *banCommand) Run() error {
	for _, what := range c.What {
		if c.Purge && !what.Hides() {
			return misused("nothing is stored of %s that --purge could remove", printable(what.String()))
		}
	}
	return c.do(c.Wait, func(r *reader) error {
		for _, what := range c.What {
			if r.isAuthor(what.Event) {
				return misused("%s is no event but the public key of an author: tendril ban %s", what.Event,
					nostr.Npub(what.Event))
			}
			ban := proto.Ban{What: what.String(), Reason: c.Reason, By: commandUser(), At: time.Now().UTC(), Purge: c.Purge}
			err := bans.Put(r.ctx, r.JS, what.Subject, ban)
			if err == nil {
				err = c.print(ban, func(w io.Writer) { fmt.Fprintf(w, "%s %s is banned\n", what.Kind(), printable(ban.What)) })
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Run implements the command.
func (c *unbanCommand) Run() error {
	return c.withBans(func(r *reader, set *bans.Set) error {
		for _, what := range c.What {
			name, ban := printable(what.String()), set.Find(what.Subject)
			if ban == nil {
				return fmt.Errorf("%s is not banned; `tendril bans` lists what is", name)
			}
			err := bans.Lift(r.ctx, r.JS, what.Subject, commandUser())
			if err == nil {
				err = c.print(ban.Ban, func(w io.Writer) { fmt.Fprintf(w, "%s %s is not banned any more\n", what.Kind(), name) })
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// commandUser says who runs this command, for the log of the system: the user and the machine.
func commandUser() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

// withBans does something with what is banned in a running system.
func (a busFlags) withBans(do func(*reader, *bans.Set) error) error {
	return a.do(a.Wait, func(r *reader) error {
		set, err := bans.Open(r.ctx, r.JS, config.Policy{}, discard)
		if err != nil {
			return err
		}
		return do(r, set)
	})
}

// listedBan is a ban as it is printed.
type listedBan struct {
	Kind string `json:"kind"`
	proto.Ban
}

// Run implements the command.
func (c *bansCommand) Run() error {
	return c.withBans(func(_ *reader, set *bans.Set) error {
		list := []listedBan{}
		for ban := range set.All() {
			ban.What = ban.String()
			list = append(list, listedBan{ban.Kind(), ban.Ban})
		}
		return c.print(list, func(w io.Writer) {
			table(w, "KIND|WHAT|SINCE|PURGE|BY|REASON", list, func(b listedBan) []any {
				return []any{b.Kind, b.What, b.At, b.Purge, cmp.Or(b.By, "command"), b.Reason}
			})
		})
	})
}

// reported is a report (NIP-56) about one subject.
type reported struct {
	ID       string    `json:"id"`
	Subject  string    `json:"subject"` // as `tendril ban` takes it
	Type     string    `json:"type,omitempty"`
	Reporter string    `json:"reporter"` // npub
	At       time.Time `json:"at"`
	Text     string    `json:"text,omitempty"`
	Banned   bool      `json:"banned"`
}

// mostReports bounds how many reports are listed, the newest first.
const mostReports = 1000

// Run implements the command.
func (c *reportsCommand) Run() error {
	return c.withBans(func(r *reader, set *bans.Set) error {
		list := []reported{}
		for _, ev := range r.events(nostr.Filter{Kinds: []int{nostr.KindReport}, Limit: mostReports}) {
			list = append(list, reportsOf(ev, set)...)
		}
		if r.err != nil {
			return r.err
		}
		return c.print(list, func(w io.Writer) {
			table(w, "TIME|SUBJECT|TYPE|BANNED|REPORTER|TEXT", list, func(r reported) []any {
				return []any{r.At, r.Subject, r.Type, r.Banned, r.Reporter, clip(strings.Join(strings.Fields(r.Text), " "))}
			})
		})
	})
}

// reportsOf are the reports in an event: about the events and repositories that it names, or else
// about authors.
func reportsOf(ev *nostr.Event, set *bans.Set) (list []reported) {
	for _, name := range []string{"e", "a", "p"} {
		if name == "p" && len(list) > 0 {
			break
		}
		for tag := range ev.Tags.FindAll(name) {
			s, _ := bans.Parse(tag[1])
			if name == "p" {
				s = bans.Subject{PubKey: tag[1]}
			}
			if !nostr.IsHex64(s.Event + s.PubKey) {
				continue
			}
			about := nostr.RepoRef{PubKey: s.PubKey, Identifier: s.Identifier}
			if p := ev.Tags.Find("p"); len(p) > 1 {
				about.PubKey = cmp.Or(about.PubKey, p[1])
			}
			list = append(list, reported{
				ev.ID, s.String(), append(tag, "")[2], nostr.Npub(ev.PubKey), ev.CreatedAt.Time().UTC(), ev.Content,
				set.Find(s) != nil || set.Repository(about) != nil,
			})
		}
	}
	return list
}
