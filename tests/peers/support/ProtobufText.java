import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.TextFormat;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;

/**
 * Messages by Java's Protobuf library, between bytes and its text format.
 * Arguments: a file with a descriptor set, whose last file has the message, and the message. Each line of the input is
 * "read" and the bytes as hexadecimal digits, or "write" and the text; each has a line of output, the other one.
 */
public class ProtobufText {
    public static void main(String[] arguments) throws Exception {
        FileDescriptorSet set = FileDescriptorSet.parseFrom(Files.readAllBytes(Path.of(arguments[0])));
        Map<String, FileDescriptor> files = new HashMap<>();
        Descriptor message = null;
        // protoc puts a file behind those that it imports.
        for (FileDescriptorProto file : set.getFileList()) {
            FileDescriptor[] imported = file.getDependencyList().stream().map(files::get).toArray(FileDescriptor[]::new);
            FileDescriptor built = FileDescriptor.buildFrom(file, imported);
            files.put(file.getName(), built);
            message = built.findMessageTypeByName(arguments[1]);
        }
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String given = line.substring(line.indexOf(' ') + 1);
            if (line.startsWith("read ")) {
                DynamicMessage read = DynamicMessage.parseFrom(message, HexFormat.of().parseHex(given));
                System.out.println(TextFormat.printer().emittingSingleLine(true).printToString(read).strip());
            } else {
                DynamicMessage.Builder written = DynamicMessage.newBuilder(message);
                TextFormat.merge(given, written);
                System.out.println(HexFormat.of().formatHex(written.build().toByteArray()));
            }
        }
    }
}
