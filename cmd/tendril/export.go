package main

import (
	"context"
	"errors"
	"fmt"

	"tendril.dev/cmd/tendril/check"
	"tendril.dev/cmd/tendril/export"
	"tendril.dev/cmd/tendril/gittree"
	"tendril.dev/lib/bus"
)

// exports is `tendril export`.
type exports struct {
	Output string `short:"o" default:"-" placeholder:"FILE" help:"Write the events to this file instead of standard output. It appears when it is whole."`
	Held   bool   `help:"Also the events that wait for their git data, before the others."`
	Git    string `placeholder:"DIR" help:"Also copy the repositories to this folder: a bare one each, <npub>/<identifier>.git, that needs nothing else. Copies that are there are brought up to date."`
	From   string `placeholder:"URL" help:"Copy the repositories from this http(s) URL of the server, instead of from NGIT_GIT_DATA_PATH."`
	Quiet  bool   `short:"q" help:"Print no progress."`

	GitDataPath string `env:"NGIT_GIT_DATA_PATH" name:"git-data-path" default:"./data/git" help:"Folder of the git repositories."`
	GitBinary   string `env:"NGIT_GIT_BINARY" name:"git-binary" default:"git" help:"The git program."`
	running     `embed:""`
}

// Run implements the command.
func (e *exports) Run() error {
	switch {
	case e.From != "" && e.Git == "":
		return errors.New("--from says where repositories are copied from; want --git too, the folder to copy them to")
	case e.From != "":
		if err := wantHTTP("--from", e.From); err != nil {
			return err
		}
	case e.Git != "":
		// What is wrong with the folder is told before the log is read.
		if _, err := gittree.Find(e.GitDataPath); err != nil {
			return fmt.Errorf("NGIT_GIT_DATA_PATH is %q: %w; want the folder of the repositories, or --from with the server's URL", e.GitDataPath, err)
		}
	}
	return e.do("export", "", 0, func(ctx context.Context, b *bus.Bus) error {
		shown := newProgress(e.Quiet)
		defer shown.end()
		announced, err := e.events(ctx, b, shown)
		if err == nil && e.Git != "" {
			err = e.repositories(ctx, announced, shown)
		}
		switch {
		case ctx.Err() != nil:
			return errors.New("interrupted: the export is not whole")
		case errors.Is(err, export.ErrNothing):
			return errNoStreams(b)
		}
		return err
	})
}

// events writes the events, and gives the repositories that they announce.
func (e *exports) events(ctx context.Context, b *bus.Bus, shown *progress) (export.Announced, error) {
	announced := export.Announced{}
	out, err := openOutput(e.Output)
	if err != nil {
		return nil, err
	}
	defer out.discard()
	write := func(raw []byte) error {
		announced.Note(raw)
		out.Write(raw)
		return out.WriteByte('\n') // the first error stays
	}
	held := 0
	if e.Held {
		// Before the log: what is released meanwhile is in it then.
		if held, err = export.Held(ctx, b.JS, write); err != nil {
			return nil, err
		}
	}
	events, err := export.Log(ctx, b.JS, func(done, of int) { shown.at("events", done, of) }, write)
	if err == nil {
		err = out.finish()
	}
	if err != nil {
		return nil, err
	}
	shown.result("%s written to %s", check.Count(events+held, "event", "events"), e.Output)
	if e.Held {
		shown.result("of these, %d waiting for git data", held)
	}
	return announced, nil
}

// repositories brings the copies of all repositories up to date.
func (e *exports) repositories(ctx context.Context, announced export.Announced, shown *progress) error {
	repos, err := gittree.Find(e.GitDataPath)
	if e.From != "" {
		repos, err = export.OnServer(e.From, announced)
	}
	if err != nil {
		return err
	}
	done, err := export.Copy(ctx, gittree.Git(e.GitBinary), repos, e.Git, func(done, of int) { shown.at("repositories", done, of) })
	if err != nil {
		return err
	}
	shown.result("%s copied to %s", check.Count(done.Repositories, "repository", "repositories"), e.Git)
	if done.NotHosted > 0 {
		shown.result("%s announced, but not hosted at %s", check.Count(done.NotHosted, "repository is", "repositories are"), e.From)
	}
	if n := len(done.Failed); n > 0 {
		return fmt.Errorf("%s could not be copied: %w", check.Count(n, "repository", "repositories"), errors.Join(done.Failed...))
	}
	return nil
}
