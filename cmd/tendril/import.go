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

	"tendril.dev/cmd/tendril/check"
	"tendril.dev/cmd/tendril/gittree"
	"tendril.dev/cmd/tendril/importer"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/candidates"
	"tendril.dev/proto"
)

// importCommand is `tendril import`.
type importCommand struct {
	File    string `arg:"" placeholder:"FILE" help:"Events, the JSON of one on each line; - for standard input; the ws(s):// URL of a relay for all that it serves."`
	Git     string `placeholder:"DIR" help:"Also push the bare repositories of this folder, <npub>/<identifier>.git, as their owners would."`
	Server  string `placeholder:"URL" help:"Where to push them: the http(s) URL of the front door. Default: NGIT_BIND_ADDRESS."`
	Refused string `placeholder:"FILE" help:"Write what is not accepted to this file, a line of JSON each: line, id, kind, reason."`
	JSON    bool   `name:"json" help:"Print the result as JSON."`
	Quiet   bool   `short:"q" help:"Print no progress."`

	BindAddress string `env:"NGIT_BIND_ADDRESS" name:"bind-address" default:"127.0.0.1:7334" help:"Where the front door listens."`
	running     `embed:""`

	relay  *importer.Relay
	shown  *progress
	repos  []gittree.Repo
	pushed *pushed
}

// pushed is what came of pushing repositories.
type pushed struct {
	Repositories int      `json:"repositories"`     // whose branches and tags are at the server
	Empty        int      `json:"empty"`            // without branches and tags
	Pulls        int      `json:"pulls"`            // commits of pull requests that are at the server
	Failed       []string `json:"failed,omitempty"` // "<path>: why"
}

// afterInterrupt is how long the import waits for verdicts on what it has offered already.
const afterInterrupt = 10 * time.Second

var errInterrupted = errors.New("interrupted: run it again to go on; what is here already is counted as known then")

// Run implements the command.
func (i *importCommand) Run() error {
	i.shown = newProgress(i.Quiet)
	defer i.shown.end()
	lines, err := i.open()
	if err != nil {
		return err
	}
	m := &importer.Import{Progress: i.shown.at}
	if i.Git != "" {
		if i.repos, err = gittree.Find(i.Git); err != nil {
			return err
		}
		i.pushed, m.Push = new(pushed), i.push
	}
	b, err := i.reach(proto.UserImport)
	if err != nil {
		return err
	}
	defer b.Close()
	ctx, stop := untilSignal()
	defer stop()
	// Until everything is read nothing is offered: a signal ends the command at once.
	read := make(chan error, 1)
	go func() {
		err := hasStream(ctx, b, proto.StreamSync)
		if err == nil {
			err = m.Read(lines)
		}
		read <- err
	}()
	select {
	case err = <-read:
	case <-ctx.Done():
		err = errInterrupted
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
	return errors.Join(i.conclude(counts), err, m.WriteRefused(refused), refused.Flush())
}

// open opens what is read: a relay, standard input or a file, which the end of the process closes.
func (i *importCommand) open() (lines func(func(importer.Line)) error, err error) {
	i.Server = cmp.Or(i.Server, strings.Replace("http://"+i.BindAddress, "//:", "//127.0.0.1:", 1))
	switch {
	case strings.HasPrefix(i.File, "ws://"), strings.HasPrefix(i.File, "wss://"):
		i.relay = importer.NewRelay(i.File)
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

// push pushes repositories as their owners would push them: every check of a push holds.
func (i *importCommand) push(ctx context.Context, pulls map[string]bool) error {
	for n, r := range i.repos {
		i.shown.at("repositories", n, len(i.repos))
		count, err := gittree.Push(ctx, r.At, r.On(i.Server).At, pulls)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			i.pushed.Failed = append(i.pushed.Failed, fmt.Sprintf("%s: %v", r.At, err))
		case pulls != nil:
			i.pushed.Pulls += count
		case count == 0:
			i.pushed.Empty++
		default:
			i.pushed.Repositories++
		}
	}
	return nil
}

// conclude prints what came of an import. Its error is why the command failed.
func (i *importCommand) conclude(c importer.Counts) (err error) {
	p := i.pushed
	if p != nil && len(p.Failed) > 0 {
		err = fmt.Errorf("%s could not be pushed", check.Count(len(p.Failed), "repository", "repositories"))
	}
	if i.JSON {
		return cmp.Or(printJSON(os.Stdout, struct {
			importer.Counts
			Pushed *pushed `json:"git,omitempty"`
		}{c, p}), err)
	}
	line := func(n int, what string) { fmt.Printf("%9d  %s\n", n, what) }
	line(c.Lines, "lines read")
	line(c.Accepted, "accepted")
	line(c.Held, "held: they wait for their git data")
	line(c.Known, "known already, or a newer one is in their place")
	line(c.Refused, "refused")
	if c.Invalid > 0 {
		line(c.Invalid, "of these: invalid id or signature")
	}
	if c.Left > 0 {
		line(c.Left, "not decided")
	}
	if p != nil {
		line(p.Repositories, "repositories pushed, or as they should be")
		line(p.Empty, "repositories without branches and tags")
		line(p.Pulls, "commits of pull requests pushed")
		for _, why := range p.Failed {
			fmt.Printf("           not pushed: %s\n", why)
		}
	}
	return err
}
