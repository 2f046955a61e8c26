package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// memberKey is a member's public key on the command line.
type memberKey string

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *memberKey) UnmarshalText(text []byte) error {
	key := string(text)
	if !nostr.IsHex64(key) {
		var err error
		if key, err = config.ParseNpub(key); err != nil {
			return fmt.Errorf("%.100q is no public key: %w; want npub1… or 64 hex digits", text, err)
		}
	}
	*k = memberKey(key)
	return nil
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
	Who      []memberKey `arg:"" help:"Public keys, npub1…."`
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
			m := proto.Member{Npub: nostr.Npub(string(key)), By: commandUser(), At: time.Now().UTC(), Removed: isRemoved}
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

// Run implements the command.
func (c *memberList) Run() error {
	return c.withBans(func(_ *reader, set *bans.Set) error {
		list := append([]proto.Member{}, set.Changes()...)
		return c.print(list, func(w io.Writer) {
			table(w, "WHO|IS|SINCE|BY", list, func(m proto.Member) []any {
				return []any{m.Npub, membership(m), m.At, m.By}
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
		fmt.Println("the next start without NGIT_PRIVATE_MODE lets everyone read everything; one with it takes this back")
		return nil
	})
}
