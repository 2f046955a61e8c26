package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// embedded is the NATS server of this process. After a write to its disk has failed, because that
// is full for example, a NATS server writes nothing more to that stream until it is started anew:
// so it is, once there is room again. The connection of this process then connects again, as to any
// server that was restarted.
type embedded struct {
	options Options
	users   []*server.User
	failed  chan struct{} // a write has failed

	mu  sync.Mutex
	srv *server.Server
}

// reviveEvery is how long a server whose writes fail is left alone before its folder is tried, and
// before it is tried again.
const reviveEvery = 5 * time.Second

// roomWanted is how many bytes must fit into the folder before the server is started anew.
const roomWanted = 4 << 20

// startServing starts the embedded server for the first time.
func startServing(o Options, users []*server.User) (*embedded, error) {
	e := &embedded{options: o, users: users, failed: make(chan struct{}, 1)}
	var err error
	if e.srv, err = e.start(); err != nil {
		return nil, err
	}
	if address := e.srv.Addr(); address != nil {
		e.options.Listen = address.String() // a port that was chosen at the start stays
	}
	return e, nil
}

func (e *embedded) start() (*server.Server, error) {
	return startServer(e.options, e.users, serverLog{log: e.options.Log, failed: e.failed})
}

// server returns the one that runs now.
func (e *embedded) server() *server.Server {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.srv
}

// InProcessConn implements nats.InProcessConnProvider: it leads to the server that runs now.
func (e *embedded) InProcessConn() (net.Conn, error) { return e.server().InProcessConn() }

// stop stops the server, which has then written everything.
func (e *embedded) stop() {
	srv := e.server()
	srv.Shutdown()
	srv.WaitForShutdown()
}

// watch starts the server anew each time its writes have failed and there is room again, until ctx
// ends.
func (e *embedded) watch(ctx context.Context, every time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.failed:
		}
		log := e.options.Log
		log.Error("the event log cannot be written; it will be tried again (is the disk full?)", "folder", e.options.Dir)
		for {
			if !pause(ctx, every) {
				return
			}
			if err := room(e.options.Dir); err != nil {
				log.Debug("the folder of the event log still cannot be written to", "error", err)
				continue
			}
			if err := e.again(); err != nil {
				log.Error("the embedded NATS could not be started anew; it will be tried again", "error", err)
				continue
			}
			break
		}
		log.Info("the folder of the event log can be written to; the embedded NATS was started anew")
	}
}

// again stops the server and starts another on the same folder.
func (e *embedded) again() error {
	e.stop()
	select {
	case <-e.failed: // of the one that has stopped
	default:
	}
	srv, err := e.start()
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.srv = srv
	return nil
}

// pause waits; it reports false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// room writes as much as roomWanted into the folder, to the disk, and removes it again.
func room(dir string) error {
	file, err := os.CreateTemp(dir, ".tendril-room-")
	if err != nil {
		return fmt.Errorf("look for room: %w", err)
	}
	defer os.Remove(file.Name())
	_, err = file.Write(make([]byte, roomWanted))
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("look for room: %w", err)
	}
	return nil
}

// serverLog passes the server's own log on; its notices about itself are debug to us. It is also
// how a failed write is noticed: the server tells nobody else.
type serverLog struct {
	log    *slog.Logger
	failed chan<- struct{}
}

// failedWrite begins what the server logs when it could not write a message to its disk.
const failedWrite = "JetStream failed to store a msg on stream"

func (l serverLog) Noticef(format string, v ...any) {
	l.log.Debug("nats: " + fmt.Sprintf(format, v...))
}
func (l serverLog) Warnf(format string, v ...any)  { l.log.Warn("nats: " + fmt.Sprintf(format, v...)) }
func (l serverLog) Fatalf(format string, v ...any) { l.log.Error("nats: " + fmt.Sprintf(format, v...)) }
func (l serverLog) Debugf(format string, v ...any) { l.trace(format, v...) }
func (l serverLog) Tracef(format string, v ...any) { l.trace(format, v...) }

func (l serverLog) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.log.Error("nats: " + text)
	if strings.HasPrefix(text, failedWrite) {
		select {
		case l.failed <- struct{}{}:
		default:
		}
	}
}

func (l serverLog) trace(format string, v ...any) {
	l.log.Debug("nats: " + strings.TrimSpace(fmt.Sprintf(format, v...)))
}
