"""The system's own messages in other languages, which the rows name in English."""

from __future__ import annotations

__all__ = ["IN_ENGLISH"]

IN_ENGLISH = tuple(
    (foreign.encode(), english.encode())
    for english, several in (
        # strerror(3), glibc's and bash's own translations: German, French, Spanish, Chinese
        ("No space left on device", "Auf dem Gerät ist kein Speicherplatz mehr verfügbar"
         "|Aucun espace disponible sur le périphérique|No queda espacio en el dispositivo|设备上没有空间"),
        ("Disk quota exceeded", "Der zugewiesene Plattenplatz (Quota) ist überschritten|Débordement du quota d'espace disque"
         "|Se ha excedido la cuota de disco|超出磁盘限额"),
        ("No such file or directory", "Datei oder Verzeichnis nicht gefunden|Aucun fichier ou dossier de ce type"
         "|Aucun fichier ou dossier de ce nom|No existe el fichero o el directorio|No existe el archivo o el directorio"
         "|没有那个文件或目录"),
        ("Permission denied", "Keine Berechtigung|Permission non accordée|Permiso denegado|权限不够"),
        ("command not found", "Kommando nicht gefunden.|Befehl nicht gefunden|commande introuvable|orden no encontrada"
         "|未找到命令"),
        ("Segmentation fault", "Speicherzugriffsfehler|Erreur de segmentation|Violación de segmento|段错误"),
        ("Cannot allocate memory", "Nicht genügend Hauptspeicher verfügbar|Impossible d'allouer de la mémoire"
         "|No se pudo asignar memoria|无法分配内存"),
    )
    for foreign in several.split("|")
)  # fmt: skip
"""A message as a log has it, and the same in English."""
