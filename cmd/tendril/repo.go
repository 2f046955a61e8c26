package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"tendril.dev/cmd/tendril/repos"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
)

// repoCommand is what operators do about repositories.
type repoCommand struct {
	List    repoList    `cmd:"" help:"List the repositories that lie on the disk and are not hosted any more, and when each is removed."`
	Show    repoShow    `cmd:"" help:"Show one repository: how it stands, its size, its events."`
	Restore repoRestore `cmd:"" help:"Cancel the removal of a repository that its owner gave up: its git data is kept. It is served again only when its owner announces it again."`
	Remove  repoRemove  `cmd:"" help:"Remove repositories that are not hosted any more now, before their time is over. This cannot be undone."`
}

// asks is what a question about repositories needs.
type asks struct {
	JSON bool          `name:"json" help:"Print JSON."`
	Wait time.Duration `name:"wait" default:"10s" help:"How long NATS and each answer may take."`

	config.Bus `embed:"" group:"Bus"`
}

type repoList struct {
	asks `embed:""`
}

type repoShow struct {
	Repo repoName `arg:"" name:"repository" help:"npub1…/identifier, naddr1… or 30617:<pubkey>:<identifier>."`
	asks `embed:""`
}

type repoRestore struct {
	Repo repoName `arg:"" name:"repository" help:"npub1…/identifier, naddr1… or 30617:<pubkey>:<identifier>."`
	asks `embed:""`
}

type repoRemove struct {
	Repos []repoName `arg:"" name:"repository" help:"npub1…/identifier, naddr1… or 30617:<pubkey>:<identifier>."`
	asks  `embed:""`
}

// repoName is a repository on the command line.
type repoName struct{ nip34.RepoRef }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *repoName) UnmarshalText(text []byte) (err error) {
	r.RepoRef, err = repos.Parse(string(text))
	return err
}

// Run implements the command.
func (c *repoList) Run(k *kong.Kong) error {
	return c.with(func(ctx context.Context, b *bus.Bus) error {
		list, missing, err := repos.List(ctx, b)
		if err != nil {
			return err
		}
		if err := c.print(k.Stdout, list, func(w io.Writer) error { return repos.WriteList(w, list, time.Now()) }); err != nil {
			return err
		}
		if len(missing) > 0 {
			return fmt.Errorf("%d of %d shards: %w; what lies there is not listed", len(missing), proto.Shards, repos.ErrNobody)
		}
		return nil
	})
}

// Run implements the command.
func (c *repoShow) Run(k *kong.Kong) error {
	return c.one(k.Stdout, proto.RepoShow, c.Repo, func(w io.Writer, s proto.RepoStatus) error {
		return repos.WriteOne(w, s, time.Now())
	})
}

// Run implements the command.
func (c *repoRestore) Run(k *kong.Kong) error {
	return c.one(k.Stdout, proto.RepoRestore, c.Repo, func(w io.Writer, s proto.RepoStatus) error {
		format := "%s is kept until its owner announces it again, or `tendril repo remove` removes it\n"
		if s.Hosted {
			format = "%s is hosted: there is nothing to restore\n"
		}
		_, err := fmt.Fprintf(w, format, repos.Name(s.Ref))
		return err
	})
}

// Run implements the command. What can be removed is, also when something else cannot.
func (c *repoRemove) Run(k *kong.Kong) error {
	var failed error
	for _, name := range c.Repos {
		failed = errors.Join(failed, c.one(k.Stdout, proto.RepoRemove, name, func(w io.Writer, s proto.RepoStatus) error {
			_, err := fmt.Fprintf(w, "%s is removed: %d references, git objects of its own, and what only it needed of its events and of shared objects\n", repos.Name(s.Ref), s.References)
			return err
		}))
	}
	return failed
}

// one asks for one repository and prints the answer.
func (c *asks) one(out io.Writer, verb proto.RepoVerb, name repoName, text func(io.Writer, proto.RepoStatus) error) error {
	return c.with(func(ctx context.Context, b *bus.Bus) error {
		status, err := repos.Do(ctx, b, verb, name.RepoRef)
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("no answer within %s (--wait); what was asked for may be done all the same: %w", c.Wait, err)
		}
		if err != nil {
			return err
		}
		return c.print(out, status, func(w io.Writer) error { return text(w, status) })
	})
}

// with connects and does something.
func (c *asks) with(do func(context.Context, *bus.Bus) error) error {
	b, err := reach(c.Bus, "repo", "", c.Wait)
	if err != nil {
		return err
	}
	defer b.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	return do(ctx, b)
}

func (c *asks) print(out io.Writer, value any, text func(io.Writer) error) error {
	if !c.JSON {
		return text(out)
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
