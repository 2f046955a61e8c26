package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"tendril.dev/cmd/tendril/importer"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// importCommand is `tendril import`.
type importCommand struct {
	File    string `arg:"" placeholder:"FILE" help:"Events, the JSON of one on each line; - for standard input; the ws(s):// URL of a relay for all that it serves."`
	Git     string `placeholder:"DIR" help:"Also push the bare repositories of this folder, <npub>/<identifier>.git, as their owners would. The folder of another GRASP server is read as it is, and not changed."`
	Folder  bool   `name:"only-folder" help:"Of the relay only what belongs to the repositories of --git: announcements, states and pull requests. All else is synced from the relays that the announcements list."`
	DryRun  bool   `name:"dry-run" help:"Read everything, say what would be brought and what is missing, and change nothing. No running system is needed."`
	Server  string `placeholder:"URL" help:"Where to push them: the http(s) URL of the front door. Default: NGIT_BIND_ADDRESS and NGIT_BASE_PATH."`
	Refused string `placeholder:"FILE" help:"Write what is not accepted to this file, a line of JSON each: line, id, kind, reason."`
	Quiet   bool   `short:"q" help:"Print no progress."`

	Domain      string `env:"NGIT_DOMAIN" name:"domain" help:"Domain of the service, for --dry-run."`
	BindAddress string `env:"NGIT_BIND_ADDRESS" name:"bind-address" default:"127.0.0.1:7334" help:"Where the front door listens."`
	BasePath    string `env:"NGIT_BASE_PATH" name:"base-path" default:"/" help:"Path of the domain below which the service lies."`
	busFlags    `embed:""`

	relay *importer.Relay
	shown *progress
	git   *gitImport // nil: without --git
}

// afterInterrupt is how long the import waits for verdicts on what it has offered already.
const afterInterrupt = 10 * time.Second

var errInterrupted = errors.New("interrupted: run it again to go on; what is here already is counted as known then")

// Run implements the command.
func (i *importCommand) Run() (err error) {
	i.shown = newProgress(i.Quiet)
	defer i.shown.end()
	if err := i.lieBelow(); err != nil {
		return err
	}
	if i.Git != "" {
		if i.git, err = newGitImport(i.Git, i.Server, i.shown); err != nil {
			return err
		}
		defer i.git.folder.Close()
	}
	lines, err := i.open()
	if err != nil {
		return err
	}
	m := &importer.Import{Progress: i.shown.at}
	ctx, stop := untilSignal()
	defer stop()
	if i.DryRun {
		return i.report(ctx, m, lines)
	}
	if i.git != nil {
		m.Push = i.git.push
	}
	b, err := i.reach(proto.UserImport)
	if err != nil {
		return err
	}
	defer b.Close()
	if err = hasStream(ctx, b, proto.StreamSync); err == nil {
		err = i.read(ctx, m, lines)
	}
	if err != nil {
		return err
	}
	refused := bufio.NewWriter(io.Discard)
	if i.Refused != "" {
		file, err := os.Create(i.Refused)
		if err != nil {
			return err
		}
		defer file.Close()
		refused.Reset(file)
	}
	counts, err := i.offer(ctx, b, m)
	i.shown.end()
	return errors.Join(i.conclude(counts, m), err, m.WriteRefused(refused), refused.Flush())
}

// lieBelow adds the base path to the addresses of the service: to its domain, as announcements name
// it, and to that of the front door, unless that is given.
func (i *importCommand) lieBelow() error {
	base, err := nostr.NormalizeBasePath(i.BasePath)
	if err != nil {
		return fmt.Errorf("NGIT_BASE_PATH is %q: %w", i.BasePath, err)
	}
	i.Server = cmp.Or(i.Server, strings.Replace("http://"+i.BindAddress, "//:", "//127.0.0.1:", 1)+base)
	if i.Domain != "" {
		i.Domain += base
	}
	return nil
}

// read reads the input. Until everything is read nothing is offered: a signal ends it at once.
func (i *importCommand) read(ctx context.Context, m *importer.Import, lines func(func(importer.Line)) error) error {
	read := make(chan error, 1)
	go func() { read <- m.Read(lines) }()
	select {
	case err := <-read:
		return err
	case <-ctx.Done():
		return errInterrupted
	}
}

// report says what an import would bring.
func (i *importCommand) report(ctx context.Context, m *importer.Import, lines func(func(importer.Line)) error) error {
	if err := i.read(ctx, m, lines); err != nil {
		return err
	}
	found, err := i.git.survey(ctx, m, i.Domain)
	i.shown.end()
	if err != nil {
		return err
	}
	return i.print(found, func(w io.Writer) { found.write(tally{w}, i.Domain) })
}

// open opens what is read: a relay, standard input or a file, which the end of the process closes.
func (i *importCommand) open() (lines func(func(importer.Line)) error, err error) {
	isRelay := strings.HasPrefix(i.File, "ws://") || strings.HasPrefix(i.File, "wss://")
	switch {
	case i.Folder && (!isRelay || i.git == nil):
		return nil, errors.New("--only-folder chooses what a relay is asked for by the repositories of a folder: " +
			"want --git DIR and the URL of a relay")
	case isRelay:
		filters := []nostr.Filter{{}}
		if i.Folder {
			if filters, err = i.git.filters(); err != nil {
				return nil, err
			}
		}
		i.relay = importer.NewRelay(i.File, filters)
		return i.relay.Lines, nil
	case i.File == "-":
		return func(each func(importer.Line)) error { return importer.Lines(os.Stdin, each) }, nil
	}
	file, err := os.Open(i.File)
	if errors.Is(err, os.ErrNotExist) && strings.Contains(i.File, "://") {
		return nil, fmt.Errorf("%s is no URL of a relay, and no file; want ws:// or wss://", i.File)
	}
	if err != nil {
		return nil, err
	}
	read, err := file.Stat()
	if written, _ := os.Stat(i.Refused); os.SameFile(read, written) {
		return nil, fmt.Errorf("--refused is %q, which is the file that is read; want another one", i.Refused)
	}
	return func(each func(importer.Line)) error { return importer.Lines(file, each) }, err
}

// offer offers what was read, until the first signal. The sender goes on for a while then: what was
// offered gets its verdict.
func (i *importCommand) offer(ctx context.Context, b *bus.Bus, m *importer.Import) (importer.Counts, error) {
	sender, err := candidates.New(b.Conn, discard)
	if err != nil {
		return importer.Counts{}, err
	}
	sending, end := context.WithCancel(context.Background())
	context.AfterFunc(ctx, func() { time.AfterFunc(afterInterrupt, end) })
	ended := make(chan error, 1)
	go func() { ended <- sender.Run(sending) }()
	m.Offer = sender.Offer
	counts, err := m.Run(ctx)
	if ctx.Err() != nil {
		err = errInterrupted
	}
	end()
	<-ended
	if err == nil && i.relay != nil {
		err = i.relay.Missing()
	}
	return counts, err
}

// conclude prints what came of an import. Its error is why the command failed.
func (i *importCommand) conclude(c importer.Counts, m *importer.Import) error {
	waiting, err := m.Waiting()
	if err != nil {
		return err
	}
	all := concluded{Counts: c, Waiting: waiting}
	if i.git != nil {
		all.Pushed = i.git.result()
		err = all.Pushed.failure()
	}
	return cmp.Or(i.print(all, func(w io.Writer) { all.write(tally{w}) }), err)
}

// concluded is what came of an import.
type concluded struct {
	importer.Counts
	Waiting []string `json:"waiting,omitempty"` // repositories whose git data is hunted
	Pushed  *pushed  `json:"git,omitempty"`     // nil: without --git
}

// write writes it for people.
func (c concluded) write(t tally) {
	t.count(c.Lines, "lines read")
	t.count(c.Accepted, "accepted")
	t.count(c.Held, "held: they wait for their git data")
	t.count(c.Known, "known already, or a newer one is in their place")
	t.count(c.Refused, "refused")
	t.countAny(c.Invalid, "of these: invalid id or signature")
	t.countAny(c.Left, "not decided")
	if p := c.Pushed; p != nil {
		t.count(p.Repositories, "repositories pushed, or as they should be")
		t.count(p.Empty, "repositories without branches and tags")
		t.count(p.Pulls, "commits of pull requests pushed")
		t.countAny(p.Contributors, "repositories of contributors pushed")
		t.list("not hosted here, because no announcement was accepted", p.NotHosted)
		t.list("not whole in the folder", p.Incomplete)
		t.list("not pushed", p.Failed)
	}
	t.list("wait for git data, which is hunted at their clone URLs", c.Waiting)
}
