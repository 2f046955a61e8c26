package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"tendril.dev/cmd/tendril/check"
	"tendril.dev/cmd/tendril/gittree"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// exportCommand is `tendril export`.
type exportCommand struct {
	Output string `short:"o" default:"-" placeholder:"FILE" help:"Write the events to this file instead of standard output. It appears when it is whole."`
	Held   bool   `help:"Also the events that wait for their git data, before the others."`
	Git    string `placeholder:"DIR" help:"Also copy the repositories to this folder: a bare one each, <npub>/<identifier>.git, that needs nothing else. Copies that are there are brought up to date."`
	From   string `placeholder:"URL" help:"Copy the repositories from this http(s) URL of the server, instead of from NGIT_GIT_DATA_PATH."`
	Quiet  bool   `short:"q" help:"Print no progress."`

	GitDataPath string `env:"NGIT_GIT_DATA_PATH" name:"git-data-path" default:"./data/git" help:"Folder of the git repositories."`
	busFlags    `embed:""`

	done struct { // what --json prints
		Events       int `json:"events"`
		Held         int `json:"held"`
		Repositories int `json:"repositories"`
	}
}

// Run implements the command.
func (e *exportCommand) Run() (err error) {
	var repos []gittree.Repo
	switch {
	case e.JSON && e.Output == "-":
		err = misused("--json prints the summary on standard output, where the events go; " +
			"want --output FILE for the events")
	case e.From != "" && e.Git == "":
		err = misused("--from says where repositories are copied from; want --git too, the folder to copy them to")
	case e.Git != "" && e.From == "":
		// What is wrong with the folder is told before the log is read.
		if repos, err = gittree.Find(e.GitDataPath); err != nil {
			err = fmt.Errorf("NGIT_GIT_DATA_PATH is %q: %w; want the folder of the repositories, or --from with the server's URL",
				e.GitDataPath, err)
		}
	}
	if err != nil {
		return err
	}
	return e.do(0, func(r *reader) error {
		shown := newProgress(e.Quiet || e.JSON)
		defer shown.end()
		err := e.events(r, shown)
		if err == nil && e.From != "" {
			repos = e.announced(r)
			err = r.err
		}
		if err == nil && e.Git != "" {
			err = e.copy(r, repos, shown)
		}
		if r.ctx.Err() != nil {
			return errors.New("interrupted: the export is not whole")
		}
		if e.JSON {
			err = errors.Join(err, printJSON(os.Stdout, e.done))
		}
		return err
	})
}

// events writes the events: first those that are held, because what is released meanwhile is in the
// log then, and then those of the log, in its order.
func (e *exportCommand) events(r *reader, shown *progress) error {
	out, err := openOutput(e.Output)
	if err != nil {
		return err
	}
	defer out.close()
	if e.Held {
		for _, h := range bucket[proto.Held](r, proto.BucketHeld, ">") {
			if h.Event != nil { // it is not the writer's mark
				out.Write(append(nostr.Encode(h.Event), '\n')) // the first error stays
				e.done.Held++
			}
		}
	}
	last, _ := bus.LastSeq(r.ctx, r.JS, proto.StreamEvents)
	r.read(proto.StreamEvents, "", func(m bus.Message) {
		shown.at("events", int(m.Seq), int(max(last, m.Seq)))
		if m.Subject == proto.SubjectEventsMark || m.Header.Get(proto.HeaderRemoved) != "" {
			return // an event was here that has left the log
		}
		var line bytes.Buffer
		json.Compact(&line, m.Data)
		out.Write(append(line.Bytes(), '\n'))
		e.done.Events++
	})
	if r.err != nil {
		return r.err
	}
	if err := out.finish(); err != nil {
		return err
	}
	shown.result("%s written to %s", check.Count(e.done.Events+e.done.Held, "event", "events"), e.Output)
	if e.Held {
		shown.result("of these, %d waiting for git data", e.done.Held)
	}
	return nil
}

// announced are the announced repositories at the server. It may not host all of them.
func (e *exportCommand) announced(r *reader) (repos []gittree.Repo) {
	for _, ev := range r.events(nostr.Filter{Kinds: []int{nostr.KindAnnouncement}}) {
		repos = append(repos, gittree.Repo{Name: strings.TrimPrefix(nostr.RepositoryURLPath(nostr.Npub(ev.PubKey),
			ev.Tags.GetD()), "/")}.On(e.From))
	}
	return repos
}

// copy brings the copies of repositories up to date, also where some cannot be copied.
func (e *exportCommand) copy(r *reader, repos []gittree.Repo, shown *progress) error {
	var failed []error
	absent := 0
	for n, repo := range repos {
		shown.at("repositories", n, len(repos))
		err := gittree.Mirror(r.ctx, repo.At, filepath.Join(e.Git, repo.Name))
		switch {
		case r.ctx.Err() != nil:
			return r.ctx.Err()
		case gittree.NotFound(err):
			absent++
		case err != nil:
			failed = append(failed, fmt.Errorf("%s: %w", repo.Name, err))
		}
	}
	e.done.Repositories = len(repos) - absent - len(failed)
	shown.result("%s copied to %s", check.Count(e.done.Repositories, "repository", "repositories"), e.Git)
	if absent > 0 {
		shown.result("%s announced, but not hosted at %s", check.Count(absent, "repository is", "repositories are"), e.From)
	}
	if n := len(failed); n > 0 {
		return fmt.Errorf("%s could not be copied: %w", check.Count(n, "repository", "repositories"), errors.Join(failed...))
	}
	return nil
}

// output is where events are written to: standard output, or a file that appears when it is whole.
type output struct {
	*bufio.Writer
	file *os.File
	name string // what the file is called in the end; empty: it is so already
}

func openOutput(name string) (o *output, err error) {
	o = &output{file: os.Stdout}
	if info, missing := os.Stat(name); missing == nil && !info.Mode().IsRegular() {
		o.file, err = os.OpenFile(name, os.O_WRONLY, 0)
	} else if name != "-" {
		o.name = name
		o.file, err = os.Create(name + ".part")
	}
	o.Writer = bufio.NewWriterSize(o.file, 1<<20)
	return o, err
}

// finish brings everything to the disk and gives the file its name.
func (o *output) finish() error {
	err := o.Flush()
	if err == nil && o.name != "" {
		err = errors.Join(o.file.Sync(), os.Rename(o.file.Name(), o.name))
	}
	return err
}

// close removes what was not finished.
func (o *output) close() {
	o.file.Close()
	if o.name != "" {
		os.Remove(o.file.Name())
	}
}
