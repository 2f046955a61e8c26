package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"

	"tendril.dev/cmd/tendril/status"
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
	return c.with(c.Wait, func(ctx context.Context, b *bus.Bus) error {
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
				_, err := fmt.Fprintf(w, "%s %s is banned; %s\n", what.Kind(), status.Shown(ban.What), next)
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
	return c.with(c.Wait, func(ctx context.Context, b *bus.Bus) error {
		set, err := bans.Open(ctx, b.JS, config.Policy{}, slog.New(slog.DiscardHandler))
		for _, what := range c.What {
			if err == nil && set.Find(what.Subject) == nil {
				err = fmt.Errorf("%s is not banned; `tendril bans` lists what is", status.Shown(what.String()))
			}
			if err == nil {
				err = bans.Lift(ctx, b.JS, what.Subject)
			}
			if err != nil {
				return c.unanswered(err)
			}
			fmt.Fprintf(k.Stdout, "%s %s is not banned any more\n", what.Kind(), status.Shown(what.String()))
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
	return c.with(c.Wait, func(ctx context.Context, b *bus.Bus) error {
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
			t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "KIND\tWHAT\tSINCE\tPURGE\tBY\tREASON")
			for _, ban := range list {
				by := ban.By
				if by == "" {
					by = "command"
				}
				fmt.Fprintf(t, "%s\t%s\t%s\t%t\t%s\t%s\n", ban.Kind, status.Shown(ban.What), status.Clock(ban.At), ban.Purge, status.Shown(by), status.Shown(ban.Reason))
			}
			return t.Flush()
		})
	})
}

// report is a report (NIP-56) about one subject.
type report struct {
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
	return c.with(c.Wait, func(ctx context.Context, b *bus.Bus) error {
		quiet := slog.New(slog.DiscardHandler)
		set, err := bans.Open(ctx, b.JS, config.Policy{}, quiet)
		if err != nil {
			return c.unanswered(err)
		}
		accepted, err := query.NewRemote(ctx, b, quiet)
		if err != nil {
			return c.unanswered(err)
		}
		list := []report{}
		for ev, err := range accepted.Query(ctx, nostr.Filter{Kinds: []int{nostr.KindReport}, Limit: mostReports}) {
			if err != nil {
				return c.unanswered(err)
			}
			list = append(list, reportsOf(ev, set)...)
		}
		return c.print(k.Stdout, list, func(w io.Writer) error {
			t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "TIME\tSUBJECT\tTYPE\tBANNED\tREPORTER\tTEXT")
			for _, r := range list {
				fmt.Fprintf(t, "%s\t%s\t%s\t%t\t%s\t%s\n", status.Clock(r.At), status.Shown(r.Subject), status.Shown(r.Type), r.Banned,
					status.Shown(r.Reporter), status.Shown(strings.Join(strings.Fields(r.Text), " ")))
			}
			return t.Flush()
		})
	})
}

// reportsOf are the reports in an event: about the events and repositories that it names, or else
// about authors.
func reportsOf(ev *nostr.Event, set *bans.Set) (list []report) {
	add := func(s bans.Subject, tag nostr.Tag) {
		author := s.PubKey
		if p := ev.Tags.Find("p"); author == "" && len(p) > 1 {
			author = p[1]
		}
		banned := set.Find(s) != nil || set.Find(bans.Subject{PubKey: author}) != nil || s.Identifier != "" && set.Repository(nostr.RepoRef{PubKey: s.PubKey, Identifier: s.Identifier}) != nil
		r := report{
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
