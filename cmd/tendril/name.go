package main

import (
	"errors"
	"fmt"
	"io"

	"tendril.dev/lib/bans"
)

// nameCommand is `tendril name`: names that the operator gives to repositories (NIP-AD).
type nameCommand struct {
	Add    nameAdd    `cmd:"" help:"Give a name to a repository. A name that another one had is that of this one then."`
	Remove nameRemove `cmd:"" help:"Take a name back."`
	List   nameList   `cmd:"" help:"List the names."`
}

type (
	nameAdd struct {
		Name       string   `arg:"" help:"One segment of an address: a-z, 0-9, dot, underscore and hyphen."`
		Repository repoName `arg:"" help:"npub1…/identifier, naddr1…, or the address of the repository."`
		busFlags   `embed:""`
	}
	nameRemove struct {
		Name     string `arg:"" help:"The name."`
		busFlags `embed:""`
	}
	nameList struct{ busFlags }
)

// Run implements the command.
func (c *nameAdd) Run() error {
	ref := c.Repository.RepoRef
	return c.withBans(func(r *reader, set *bans.Set) error {
		if set.WasPrivate() {
			return errors.New("this service is private, and a private service answers for no name")
		}
		if err := bans.Give(r.ctx, r.JS, c.Name, ref, commandUser()); err != nil {
			return err
		}
		given := map[string]string{"name": c.Name, "repository": ref.Name()}
		return c.print(given, func(w io.Writer) { fmt.Fprintf(w, "%s is %s\n", c.Name, printable(ref.Name())) })
	})
}

// Run implements the command.
func (c *nameRemove) Run() error {
	return c.withBans(func(r *reader, set *bans.Set) error {
		ref, named := set.NamedRepository(c.Name)
		if !named {
			return fmt.Errorf("no repository has the name %s; `tendril name list` lists them", printable(c.Name))
		}
		if err := bans.TakeBack(r.ctx, r.JS, c.Name, commandUser()); err != nil {
			return err
		}
		taken := map[string]string{"name": c.Name, "repository": ref.Name()}
		return c.print(taken, func(w io.Writer) { fmt.Fprintf(w, "%s is not %s any more\n", c.Name, printable(ref.Name())) })
	})
}

// Run implements the command.
func (c *nameList) Run() error {
	return c.withBans(func(_ *reader, set *bans.Set) error {
		list := append([]bans.Name{}, set.Names()...)
		return c.print(list, func(w io.Writer) {
			table(w, "NAME|REPOSITORY|SINCE|BY", list, func(n bans.Name) []any { return []any{n.Name, n.What, n.At, n.By} })
		})
	})
}
