package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/subject"
	"tendril.dev/proto"
)

// personKey is the public key of a person on the command line.
type personKey string

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *personKey) UnmarshalText(text []byte) error {
	key := strings.ToLower(strings.TrimSpace(string(text)))
	if !nostr.IsHex64(key) { // which subject.Parse takes for the id of an event
		named, err := subject.Parse(string(text))
		if err != nil || named.Kind != subject.Author {
			return fmt.Errorf("%.100q is no public key: want npub1…, nprofile1… or 64 hex digits", text)
		}
		key = named.PubKey
	}
	*k = personKey(key)
	return nil
}

// npub is the key as people write it; "" where none is named.
func (k personKey) npub() string {
	if k == "" {
		return ""
	}
	return nostr.Npub(string(k))
}

// memberCommand changes who may read a private service (GRASP-08), in every process at once.
type memberCommand struct {
	Add    memberChange[added]   `cmd:"" help:"Let these keys read everything, and announce repositories."`
	Remove memberChange[removed] `cmd:"" help:"End this for these keys, also where NGIT_PRIVATE_MEMBERS names them. Their open connections end at once."`
	List   memberList            `cmd:"" help:"List the members that were added and removed. Those of the settings that were not changed are in NGIT_PRIVATE_MEMBERS."`
}

type (
	added   struct{}
	removed struct{}
)

// memberChange adds members, or removes them.
type memberChange[how any] struct {
	Who      []personKey `arg:"" help:"Public keys: npub1…, nprofile1… or 64 hex digits."`
	busFlags `embed:""`
}

// Run implements the command.
func (c *memberChange[how]) Run() error {
	_, isRemoved := any(*new(how)).(removed)
	return c.withBans(func(r *reader, set *bans.Set) error {
		if !set.WasPrivate() {
			return errors.New("this service is public: everyone reads everything; NGIT_PRIVATE_MODE makes a service private")
		}
		for _, key := range c.Who {
			if ban := set.Find(bans.Subject{PubKey: string(key)}); ban != nil && !isRemoved {
				return fmt.Errorf("%s is banned, so it cannot be a member: tendril unban %s", key.npub(), key.npub())
			}
			m := proto.Member{Npub: key.npub(), By: commandUser(), At: time.Now().UTC(), Removed: isRemoved}
			err := bans.PutMember(r.ctx, r.JS, string(key), isRemoved, m.By)
			if err == nil {
				err = c.print(m, func(w io.Writer) { fmt.Fprintf(w, "%s is %s\n", m.Npub, membership(m)) })
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func membership(m proto.Member) string {
	if m.Removed {
		return "no member"
	}
	return "a member"
}

type memberList struct{ busFlags }

// listedMember is a member as it is printed.
type listedMember struct {
	proto.Member
	Banned bool `json:"banned,omitempty"` // and so no member
}

// Run implements the command.
func (c *memberList) Run() error {
	return c.withBans(func(_ *reader, set *bans.Set) error {
		list := []listedMember{}
		for _, m := range set.Changes() {
			key, err := config.ParseNpub(m.Npub)
			list = append(list, listedMember{m, err == nil && set.Find(bans.Subject{PubKey: key}) != nil})
		}
		return c.print(list, func(w io.Writer) {
			table(w, "WHO|IS|SINCE|BY", list, func(m listedMember) []any {
				is := membership(m.Member)
				if m.Banned {
					is = "banned"
				}
				return []any{m.Npub, is, m.At, m.By}
			})
		})
	})
}

// makePublicCommand accepts that what was private becomes public.
type makePublicCommand struct {
	Everything bool `required:"" help:"Every event and repository, also of the past. It cannot be taken back for who has read them."`
	busFlags   `embed:""`
}

// Run implements the command.
func (c *makePublicCommand) Run() error {
	return c.do(c.Wait, func(r *reader) error {
		if err := bans.MarkPrivate(r.ctx, r.JS, false, commandUser()); err != nil {
			return err
		}
		return c.print(map[string]bool{"private": false}, func(w io.Writer) {
			fmt.Fprintln(w, "the next start without NGIT_PRIVATE_MODE lets everyone read everything; one with it takes this back")
		})
	})
}
