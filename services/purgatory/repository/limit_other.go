//go:build !linux

package repository

import (
	"syscall"
	"time"
)

func limitProcess(int, int64, int64, time.Duration) error { return nil }

func endsWithParent(attr *syscall.SysProcAttr) *syscall.SysProcAttr { return attr }
