package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
)

// subject is what is banned, on the command line.
type subject struct{ bans.Subject }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *subject) UnmarshalText(text []byte) (err error) {
	s.Subject, err = bans.Parse(string(text))
	return err
}

type (
	banCommand struct {
		What   []subject `arg:"" help:"An author (npub1…), a repository (npub1…/identifier), an identifier, or an event id."`
		Reason string    `help:"What clients and git users are told."`
		Purge  bool      `help:"Remove what is stored when the grace period (NGIT_DELETION_GRACE) is over."`
		asks   `embed:""`
	}
	unbanCommand struct {
		What []subject `arg:"" help:"What was banned: npub1…, npub1…/identifier, an identifier, or an event id."`
		asks `embed:""`
	}
	bansCommand    struct{ asks }
	reportsCommand struct{ asks }
)

// Run implements the command.
func (c *banCommand) Run(k *kong.Kong) error {
	return c.do("bans", "", c.Wait, func(ctx context.Context, b *bus.Bus) error {
		for _, what := range c.What {
			ban := proto.Ban{Reason: c.Reason, At: time.Now().UTC(), Purge: c.Purge}
			if err := bans.Put(ctx, b.JS, what.Subject, ban); err != nil {
				return c.unanswered(err)
			}
			ban.What = what.String()
			next := "what is stored is kept, unserved"
			if c.Purge {
				next = "what is stored is removed when the grace period is over; `tendril unban` before then brings it back"
			}
			err := c.print(k.Stdout, ban, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s %s is banned; %s\n", what.Kind(), printable(ban.What), next)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Run implements the command.
func (c *unbanCommand) Run(k *kong.Kong) error {
	return c.do("bans", "", c.Wait, func(ctx context.Context, b *bus.Bus) error {
		set, err := bans.Open(ctx, b.JS, config.Policy{}, slog.New(slog.DiscardHandler))
		for _, what := range c.What {
			if err == nil && set.Find(what.Subject) == nil {
				err = fmt.Errorf("%s is not banned; `tendril bans` lists what is", printable(what.String()))
			}
			if err == nil {
				err = bans.Lift(ctx, b.JS, what.Subject)
			}
			if err != nil {
				return c.unanswered(err)
			}
			fmt.Fprintf(k.Stdout, "%s %s is not banned any more\n", what.Kind(), printable(what.String()))
		}
		return nil
	})
}

// listedBan is a ban as it is printed.
type listedBan struct {
	Kind string `json:"kind"`
	proto.Ban
}

// Run implements the command.
func (c *bansCommand) Run(k *kong.Kong) error {
	return c.do("bans", "", c.Wait, func(ctx context.Context, b *bus.Bus) error {
		set, err := bans.Open(ctx, b.JS, config.Policy{}, slog.New(slog.DiscardHandler))
		if err != nil {
			return c.unanswered(err)
		}
		list := []listedBan{}
		for ban := range set.All() {
			ban.What = ban.String()
			list = append(list, listedBan{ban.Kind(), ban.Ban})
		}
		return c.print(k.Stdout, list, func(w io.Writer) error {
			return table(w, "KIND|WHAT|SINCE|PURGE|BY|REASON", len(list), func(i int) []any {
				ban := list[i]
				return []any{ban.Kind, printable(ban.What), clock(ban.At), ban.Purge, printable(cmp.Or(ban.By, "command")), printable(ban.Reason)}
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
func (c *reportsCommand) Run(k *kong.Kong) error {
	return c.do("bans", "", c.Wait, func(ctx context.Context, b *bus.Bus) error {
		quiet := slog.New(slog.DiscardHandler)
		set, err := bans.Open(ctx, b.JS, config.Policy{}, quiet)
		if err != nil {
			return c.unanswered(err)
		}
		accepted, err := query.NewRemote(ctx, b, quiet)
		if err != nil {
			return c.unanswered(err)
		}
		list := []reported{}
		for ev, err := range accepted.Query(ctx, nostr.Filter{Kinds: []int{nostr.KindReport}, Limit: mostReports}) {
			if err != nil {
				return c.unanswered(err)
			}
			list = append(list, reportsOf(ev, set)...)
		}
		return c.print(k.Stdout, list, func(w io.Writer) error {
			return table(w, "TIME|SUBJECT|TYPE|BANNED|REPORTER|TEXT", len(list), func(i int) []any {
				r := list[i]
				return []any{clock(r.At), printable(r.Subject), printable(r.Type), r.Banned, r.Reporter, printable(clip(strings.Join(strings.Fields(r.Text), " ")))}
			})
		})
	})
}

// reportsOf are the reports in an event: about the events and repositories that it names, or else
// about authors.
func reportsOf(ev *nostr.Event, set *bans.Set) (list []reported) {
	add := func(s bans.Subject, tag nostr.Tag) {
		author := s.PubKey
		if p := ev.Tags.Find("p"); author == "" && len(p) > 1 {
			author = p[1]
		}
		banned := set.Find(s) != nil || set.Find(bans.Subject{PubKey: author}) != nil || s.Identifier != "" && set.Repository(nostr.RepoRef{PubKey: s.PubKey, Identifier: s.Identifier}) != nil
		r := reported{
			ID: ev.ID, Subject: s.String(), Reporter: bans.Subject{PubKey: ev.PubKey}.String(), At: ev.CreatedAt.Time().UTC(), Text: ev.Content, Banned: banned,
		}
		if len(tag) > 2 {
			r.Type = tag[2]
		}
		list = append(list, r)
	}
	for _, names := range []string{"ea", "p"} {
		for _, tag := range ev.Tags {
			if len(tag) < 2 || len(tag[0]) != 1 || !strings.Contains(names, tag[0]) {
				continue
			}
			s, err := bans.Parse(tag[1])
			if tag[0] == "p" {
				s, err = bans.Subject{PubKey: tag[1]}, nil
			}
			if ok := nostr.IsHex64(s.Event + s.PubKey); err == nil && ok {
				add(s, tag)
			}
		}
		if len(list) > 0 {
			break
		}
	}
	return slices.Clip(list)
}
