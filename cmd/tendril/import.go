package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/cmd/tendril/gittree"
	"tendril.dev/cmd/tendril/importer"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/candidates"
	"tendril.dev/lib/config"
	"tendril.dev/proto"
)

// imports is `tendril import`.
type imports struct {
	File    string        `arg:"" placeholder:"FILE" help:"Events, the JSON of one on each line; - for standard input; the ws(s):// URL of a relay for all that it serves."`
	Git     string        `placeholder:"DIR" help:"Also push the bare repositories of this folder, <npub>/<identifier>.git, as their owners would: what the state events of the file say."`
	Server  string        `placeholder:"URL" help:"Where to push them: the http(s) URL of the front door. Default: NGIT_BIND_ADDRESS."`
	Refused string        `placeholder:"FILE" help:"Write what is not accepted to this file, a line of JSON each: line, id, kind, reason."`
	For     time.Duration `name:"wait-for-git" placeholder:"DURATION" help:"How long to wait for git data that is hunted for, and then to offer again what depends on it."`
	Temp    string        `placeholder:"DIR" help:"Folder of temporary files, which take about as much room as the input. Default: that of the system."`
	JSON    bool          `name:"json" help:"Print the result as JSON."`
	Quiet   bool          `short:"q" help:"Print no progress."`
	Wait    time.Duration `default:"10s" help:"How long NATS may take to answer at first."`

	BindAddress string `env:"NGIT_BIND_ADDRESS" name:"bind-address" default:"127.0.0.1:7334" help:"Where the front door listens."`
	GitBinary   string `env:"NGIT_GIT_BINARY" name:"git-binary" default:"git" help:"The git program."`
	config.Bus  `embed:"" group:"Bus"`
}

// Run implements the command.
func (i *imports) Run() error {
	server, err := i.server()
	if err != nil {
		return err
	}
	// A second signal ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	defer stop()
	tell := newTeller(os.Stderr, i.Quiet)
	in, err := i.open(ctx, tell)
	if err != nil {
		return err
	}
	defer in.close()
	if i.Refused != "" && in.isFile(i.Refused) {
		return fmt.Errorf("--refused is %q, which is the file that is read; want another one", i.Refused)
	}

	var trees *importer.Trees
	if i.Git != "" {
		told := func(done, of int) { tell.progress("repositories", uint64(done), uint64(of)) }
		if trees, err = importer.NewTrees(ctx, gittree.Git{Program: i.GitBinary}, i.Git, server, told); err != nil {
			return err
		}
	}
	b, err := reach(i.Bus, "import", proto.UserImport, i.Wait)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := i.look(ctx, b); err != nil {
		return cmp.Or(interrupted(ctx), err)
	}
	refused, err := openRefused(i.Refused)
	if err != nil {
		return err
	}
	counts, err := i.run(ctx, b, in, trees, refused, tell)
	if closing := refused.close(); err == nil {
		err = closing
	}
	if err == nil {
		err = in.missing()
	}
	return i.conclude(ctx, counts, trees, err)
}

// server is where repositories are pushed to.
func (i *imports) server() (string, error) {
	if i.Server != "" {
		if !strings.HasPrefix(i.Server, "http://") && !strings.HasPrefix(i.Server, "https://") {
			return "", fmt.Errorf("--server is %q; want the http(s) URL of the front door, like https://git.example.com", i.Server)
		}
		return i.Server, nil
	}
	host, port, err := net.SplitHostPort(i.BindAddress)
	if err != nil {
		return "", &config.Error{Setting: "NGIT_BIND_ADDRESS", Value: i.BindAddress, Reason: "want host:port"}
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port), nil
}

// look asks whether anybody takes events there.
func (i *imports) look(ctx context.Context, b *bus.Bus) error {
	ctx, cancel := context.WithTimeout(ctx, i.Wait)
	defer cancel()
	_, err := b.JS.Stream(ctx, proto.StreamSync)
	at := bus.Redacted(b.Conn.ConnectedUrl())
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("NATS at %s has no streams of Tendril: none has run with it", at)
	case errors.Is(err, context.DeadlineExceeded) && b.Refused() > 0:
		return fmt.Errorf("this login may not offer events to NATS at %s; want that of the user %s (`tendril logins init FOLDER %s` makes it)", at, proto.UserImport, proto.UserImport)
	case err != nil:
		return fmt.Errorf("NATS at %s did not answer: %w", at, err)
	}
	return nil
}

// run imports.
func (i *imports) run(ctx context.Context, b *bus.Bus, in io.Reader, trees *importer.Trees, refused *refusedFile, tell *teller) (importer.Counts, error) {
	sender, err := candidates.New(b.Conn, slog.New(slog.DiscardHandler))
	if err != nil {
		return importer.Counts{}, err
	}
	// The sender goes on after an interrupt: what was offered gets its verdict.
	sending, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- sender.Run(sending) }()
	defer func() {
		end()
		<-ended
	}()
	m := importer.Import{Offerer: sender, Temp: i.Temp, Wait: i.For, Progress: tell.importing}
	if trees != nil {
		m.Repositories = trees
	}
	if refused != nil {
		m.Refused = refused.w
	}
	return m.Run(ctx, in)
}
