package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"tendril.dev/cmd/tendril/repos"
	"tendril.dev/cmd/tendril/status"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// repoCommand is what operators do about repositories.
type repoCommand struct {
	List    repoList    `cmd:"" help:"List the repositories that lie on the disk and are not hosted any more, and when each is removed."`
	Show    repoShow    `cmd:"" help:"Show one repository: how it stands, its size, its events."`
	Restore repoRestore `cmd:"" help:"Cancel the removal of a repository that its owner gave up: its git data is kept. It is served again only when its owner announces it again."`
	Remove  repoRemove  `cmd:"" help:"Remove repositories that are not hosted any more now, before their time is over. This cannot be undone."`
}

// connectTime is how long NATS may take to answer at first.
const connectTime = 10 * time.Second

// asks is what a question about repositories needs.
type asks struct {
	JSON bool          `name:"json" help:"Print JSON."`
	Wait time.Duration `name:"wait" default:"${wait}" help:"How long an answer may take."`

	config.Bus `embed:"" group:"Bus"`
}

type repoList struct {
	asks `embed:"" set:"wait=10s"`
}

type repoShow struct {
	Repo repoName `arg:"" name:"repository" help:"npub1…/identifier, naddr1… or 30617:<pubkey>:<identifier>."`
	asks `embed:"" set:"wait=10s"`
}

type repoRestore struct {
	Repo repoName `arg:"" name:"repository" help:"npub1…/identifier, naddr1… or 30617:<pubkey>:<identifier>."`
	asks `embed:"" set:"wait=10s"`
}

type repoRemove struct {
	Repos []repoName `arg:"" name:"repository" help:"npub1…/identifier, naddr1… or 30617:<pubkey>:<identifier>."`
	Yes   bool       `short:"y" help:"Do not ask for confirmation. Without it the command asks, if it runs on a terminal and without --json."`
	asks  `embed:"" set:"wait=6m"`
}

// repoName is a repository on the command line.
type repoName struct{ nostr.RepoRef }

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
		_, err := fmt.Fprintf(w, format, shown(s.Ref))
		return err
	})
}

// Run implements the command. What can be removed is, also when something else cannot.
func (c *repoRemove) Run(k *kong.Kong) error {
	asks := !c.Yes && !c.JSON && term.IsTerminal(int(os.Stdin.Fd()))
	answers := bufio.NewScanner(os.Stdin)
	var failed error
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

// confirm shows a repository and asks whether to remove it.
func (c *repoRemove) confirm(answers *bufio.Scanner, out io.Writer, name repoName) error {
	var hosted bool
	show := *c
	show.JSON = false
	err := show.one(out, proto.RepoShow, name, func(w io.Writer, s proto.RepoStatus) error {
		hosted = s.Hosted
		return repos.WriteOne(w, s, time.Now())
	})
	if hosted || err != nil {
		return err // of one that is hosted, the worker says why it cannot be
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

// shown is how a repository is printed.
func shown(ref string) string { return status.Shown(repos.Name(ref)) }

// one asks for one repository and prints the answer.
func (c *asks) one(out io.Writer, verb proto.RepoVerb, name repoName, text func(io.Writer, proto.RepoStatus) error) error {
	return c.with(func(ctx context.Context, b *bus.Bus) error {
		if verb == proto.RepoRemove {
			defer tellWaiting(os.Stderr)()
		}
		answer, err := repos.Do(ctx, b, verb, name.RepoRef)
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("no answer within %s (--wait); what was asked for may be done all the same: %w", c.Wait, err)
		}
		if err != nil {
			return err
		}
		return c.print(out, answer, func(w io.Writer) error { return text(w, answer) })
	})
}

// waitTold is how often it is told that there is no answer yet.
const waitTold = 10 * time.Second

// tellWaiting tells people now and then that there is no answer yet, until stop is called.
func tellWaiting(to io.Writer) (stop func()) {
	began, ended := time.Now(), make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		tick := time.NewTicker(waitTold)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(to, "no answer for %s; removing a repository with many events takes time\n", time.Since(began).Round(time.Second))
			case <-ended:
				return
			}
		}
	})
	return func() {
		close(ended)
		telling.Wait()
	}
}

// with connects and does something.
func (c *asks) with(do func(context.Context, *bus.Bus) error) error {
	b, err := reach(c.Bus, "repo", "", min(c.Wait, connectTime))
	if err != nil {
		return err
	}
	defer b.Close()
	ctx, stop := untilSignal()
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	return do(ctx, b)
}

func (c *asks) print(out io.Writer, value any, text func(io.Writer) error) error {
	if c.JSON {
		return printJSON(out, value)
	}
	return text(out)
}
